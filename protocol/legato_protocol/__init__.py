"""What two Legato processes must agree on: messages, block hashes and names.

Nothing in here imports more than the standard library and msgspec. Only what processes of both kinds do in the same way
does I/O: they follow files, and accept TLS connections.
"""
