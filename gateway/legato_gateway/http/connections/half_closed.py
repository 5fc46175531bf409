"""Clients that will send nothing more: some only shut down sending and wait for their answer, others are gone.

TCP reports both alike. But data written to a closed socket is answered with a reset. So something is written that
clients skip: an interim answer (RFC 9110, 15.2), or in a stream the application's comment.
"""

import asyncio
import socket
from typing import Final

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
POLL: Final = 0.1  # seconds
POLLS: Final = 10  # until it is probed again: a client may leave later, too
_RESET: Final = 7  # TCP_CLOSE, in the first byte of TCP_INFO


async def probe(transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
    """Probes a client until `transport` is closed, and closes it if the client is gone.

    While a response is in progress, the application is asked to write, by an empty `http.request`.
    """
    while not transport.is_closing():
        if cycle.response_started:
            cycle.message_event.set()
        else:
            transport.write(INTERIM)
        for _ in range(POLLS):
            await asyncio.sleep(POLL)
            if transport.is_closing():
                return
            if _is_reset(transport):
                transport.abort()
                return


def can_be_asked(cycle: RequestResponseCycle) -> bool:
    """True if a probe can distinguish this client from one that is gone. HTTP/1.0 has no interim answers, and TLS has
    its own end of a connection."""
    return hasattr(socket, "TCP_INFO") and cycle.scope["http_version"] == "1.1" and cycle.scope["scheme"] == "http"


def _is_reset(transport: asyncio.Transport) -> bool:
    connection = transport.get_extra_info("socket")
    state: bytes = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return state[0] == _RESET
