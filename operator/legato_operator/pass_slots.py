"""Limits the number of concurrent passes, and orders the waiting ones."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

PASSED_OVER = 4  # maximum times in a row that urgent passes overtake the first other one


class PassSlots:
    """A fixed number of slots. Urgent passes go first, except every fifth time, so that no pass waits forever."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._urgent: deque[asyncio.Future[None]] = deque()
        self._others: deque[asyncio.Future[None]] = deque()
        self._passed_over = 0

    @contextlib.asynccontextmanager
    async def acquire(self, urgent: bool) -> AsyncIterator[None]:
        """Waits for a slot, and releases it on exit."""
        await self._take(self._urgent if urgent else self._others)
        try:
            yield
        finally:
            self._give_back()

    async def _take(self, queue: deque[asyncio.Future[None]]) -> None:
        if self._free:
            self._free -= 1
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # it got the slot in the same moment
                self._give_back()
            raise

    def _give_back(self) -> None:
        """Gives a slot to the next waiting pass."""
        while queue := self._next_queue():
            mine = queue.popleft()
            if not mine.done():
                passed = queue is self._urgent and bool(self._others)
                self._passed_over = self._passed_over + 1 if passed else 0
                mine.set_result(None)
                return
        self._free += 1

    def _next_queue(self) -> deque[asyncio.Future[None]]:
        due = self._passed_over >= PASSED_OVER and self._others
        return self._others if due or not self._urgent else self._urgent
