"""Time that passes when a test or a simulation says so."""

import heapq
from collections.abc import Callable
from itertools import count
from math import inf


class VirtualTime:
    """A clock, in seconds from 0, and what is to happen when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def clock(self) -> float:
        return self.now

    @property
    def due(self) -> float:
        """When the next thing happens; infinite where nothing will."""
        return self._due[0][0] if self._due else inf

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Lets `act` happen in a while; what is due at the same time happens in the order of these calls."""
        heapq.heappush(self._due, (self.now + seconds, next(self._order), act))

    def run(self, until: float) -> None:
        """Lets everything happen that is due by then."""
        while self._due and self._due[0][0] <= until:
            when, _, act = heapq.heappop(self._due)
            self.now = max(self.now, when)
            act()
        self.now = max(self.now, until)
