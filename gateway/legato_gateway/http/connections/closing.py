"""Answers that close a connection: its own ones to incomplete or invalid requests, and the application's.

The application may answer while the rest of a body is still arriving.

Closing a socket with unread data resets the connection, and a client that is still sending may then never read its
answer. nginx has `lingering_close` for that.
"""

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus

from legato_gateway import errors
from legato_gateway.errors import GatewayError


class AnswerTransport(asyncio.Transport):
    """`transport`, except that `close` replaces its own."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        self._close = close

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._close()


def own_answer(error: GatewayError, more: Mapping[str, str]) -> bytes:
    """Returns `error` as an HTTP response that closes the connection, without the application. `more` are headers."""
    body = errors.body(error)
    own = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    lines = [f"{name}: {value}\r\n" for name, value in {**error.headers, **more, **own}.items()]
    status = HTTPStatus(error.http_status)
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{''.join(lines)}\r\n".encode() + body
