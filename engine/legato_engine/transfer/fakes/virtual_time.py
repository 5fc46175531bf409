"""Virtual time for tests and simulations."""

import heapq
from collections.abc import Callable
from itertools import count
from math import inf


class VirtualTime:
    """A clock, in seconds from 0, with scheduled callbacks."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def clock(self) -> float:
        return self.now

    @property
    def due(self) -> float:
        """Time of the next callback; infinite if nothing is scheduled."""
        return self._due[0][0] if self._due else inf

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Schedules `act`; callbacks that are due at the same time run in the order of these calls."""
        heapq.heappush(self._due, (self.now + seconds, next(self._order), act))

    def run(self, until: float) -> None:
        """Advances the time and runs all callbacks that are due."""
        while self._due and self._due[0][0] <= until:
            when, _, act = heapq.heappop(self._due)
            self.now = max(self.now, when)
            act()
        self.now = max(self.now, until)
