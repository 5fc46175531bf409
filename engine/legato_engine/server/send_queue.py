"""A bounded queue of frames to one gateway; `put` never blocks."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable


class SlowConsumer(Exception):
    """The gateway does not read: its queue has overflown."""


class SendQueue:
    def __init__(self, limit: int) -> None:
        self._limit = limit  # bytes
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._wake = asyncio.Event()
        self._overflown = asyncio.Event()

    def put(self, *frames: bytes) -> None:
        """Queues frames. After an overflow, all frames are dropped and `wait_overflow` raises."""
        if self._overflown.is_set():
            return
        self._waiting.extend(frames)
        self._size += sum(map(len, frames))
        self._wake.set()
        if self._size > self._limit:
            self._waiting.clear()
            self._overflown.set()

    async def wait_overflow(self) -> None:
        """Never returns; raises SlowConsumer after an overflow."""
        await self._overflown.wait()
        raise SlowConsumer(f"more than {self._limit} bytes wait for it")

    async def pump(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Sends queued frames forever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                frame = self._waiting.popleft()
                self._size -= len(frame)
                await send(frame)
