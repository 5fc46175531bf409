"""A transport for answers. The answer may close the connection while the rest of a body is still arriving.

Closing a socket with unread data resets the connection, and a client that is still sending may then never read its
answer. nginx has `lingering_close` for that.
"""

import asyncio
from collections.abc import Callable


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
