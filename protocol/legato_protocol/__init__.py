"""What two Legato processes must agree on: messages, block hashes and names.

Nothing in here does I/O, and nothing in here imports more than the standard library and msgspec.
"""
