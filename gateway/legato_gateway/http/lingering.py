"""What an answer is written to: who writes it may close the connection, but the rest of a body may still be coming.

Closing a socket in which something is unread resets the connection, and a client that is still sending may then never
read its answer. nginx has `lingering_close` for that.
"""

import asyncio
from collections.abc import Callable


class AnswerTransport(asyncio.Transport):
    """`transport`, but that `close` is called instead of its own."""

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
