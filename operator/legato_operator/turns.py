"""Who may work next, where only so many may at once."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

PASSED_OVER = 4  # how often in a row, at most, the first of those who wait is for one who asked later


class Turns:
    """So many at once. Who is `urgent` goes before who is not, but for every fifth turn: nobody waits without end."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._urgent: deque[asyncio.Future[None]] = deque()
        self._others: deque[asyncio.Future[None]] = deque()
        self._passed_over = 0

    @contextlib.asynccontextmanager
    async def taken(self, urgent: bool) -> AsyncIterator[None]:
        """A turn, given back at the end."""
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
            if mine.done() and not mine.cancelled():  # it was given the turn just then
                self._give_back()
            raise

    def _give_back(self) -> None:
        """To the next who still waits."""
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
