"""Clients that will send nothing more: those that only shut down sending wait for their answer, others are gone.

TCP says the same of both. But what is written to a socket that was closed is answered with a reset, so something is
written which clients skip: an interim answer (RFC 9110, 15.2), or in a stream what the application has for that.
"""

import asyncio
import socket
from typing import Final

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LOOK: Final = 0.1  # seconds
LOOKS: Final = 10  # until it is asked again: a client may leave later, too
_RESET: Final = 7  # TCP_CLOSE, in the first byte of TCP_INFO


class HalfClosed:
    """Asks a client again and again, until `transport` is closed; closes it where the client is gone.

    While a response is under way, the application is asked to write: it gets an empty `http.request`.
    """

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self._cycle = cycle
        self._loop = asyncio.get_running_loop()
        self._ask()

    def _ask(self) -> None:
        if self._cycle.response_started:
            self._cycle.message_event.set()
        else:
            self._transport.write(INTERIM)
        self._look(LOOKS)

    def _look(self, left: int) -> None:
        if self._transport.is_closing():
            return
        if _is_reset(self._transport):
            self._transport.abort()
        elif left:
            self._loop.call_later(LOOK, self._look, left - 1)
        else:
            self._ask()


def can_be_asked(cycle: RequestResponseCycle) -> bool:
    """Whether this client can be told from one that is gone: older ones know no interim answers, and TLS has its own
    end of a connection."""
    return hasattr(socket, "TCP_INFO") and cycle.scope["http_version"] == "1.1" and cycle.scope["scheme"] == "http"


def _is_reset(transport: asyncio.Transport) -> bool:
    connection = transport.get_extra_info("socket")
    state: bytes = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return state[0] == _RESET
