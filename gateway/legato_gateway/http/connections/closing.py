"""Ends of connections: the server's own answers, and a transport whose protocol decides when it closes and is read."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from legato_gateway import errors
from legato_gateway.errors import GatewayError


class AnswerTransport(asyncio.Transport):
    """`transport`, except that `close` and `resume` replace its own methods until `release`."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None], resume: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        self._close = close
        self._resume = resume

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._transport.write(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._resume()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._close()

    def release(self) -> None:
        """Restores the transport's own methods, so that nothing refers to the protocol any more."""
        self._close, self._resume = self._transport.close, self._transport.resume_reading


def own_answer(error: GatewayError) -> bytes:
    """Returns `error` as an HTTP response that closes the connection, without the application."""
    body = errors.body(error)
    own = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    lines = [f"{name}: {value}\r\n" for name, value in {**error.headers, **own}.items()]
    status = HTTPStatus(error.http_status)
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{''.join(lines)}\r\n".encode() + body
