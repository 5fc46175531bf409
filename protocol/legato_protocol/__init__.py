"""Messages, block hashes and names that Legato's processes must agree on.

Imports nothing but the standard library and msgspec. Only two modules do I/O, because gateways and workers do the same
there: they follow files and accept TLS connections.
"""
