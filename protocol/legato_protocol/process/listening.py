"""Listening sockets."""

import socket

EVERY_ADDRESS = "::"


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Returns a listening socket at `host`; port 0 takes a free one. Raises OSError.

    EVERY_ADDRESS listens on both IP families, whatever the system's default is; on a machine without IPv6, on IPv4.
    """
    if host == EVERY_ADDRESS and socket.has_dualstack_ipv6():
        return socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
    host = "0.0.0.0" if host == EVERY_ADDRESS else host
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=backlog)
