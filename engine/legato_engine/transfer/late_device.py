"""A device that works by itself and finishes late, in one process and virtual time: for tests and simulations.

It does what it is told in the order of one stream, each piece at a time that nobody knows before. What it writes is
there no earlier, so whoever reads too early reads what was there before.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from legato_engine.transfer.virtual_time import VirtualTime


@dataclass(slots=True, eq=False)
class LateEvent:
    """Implements `DeviceEvent`."""

    passed: bool = False

    def done(self) -> bool:
        return self.passed


class LateStream:
    """Work that is done in the order in which it was begun, each piece up to `delay` seconds after the one before."""

    def __init__(self, time: VirtualTime, random: Random, delay: float) -> None:
        self._time = time
        self._random = random
        self._delay = delay
        self._free_at = 0.0
        self._begun: deque[tuple[Callable[[], None], LateEvent]] = deque()

    @property
    def idle(self) -> bool:
        """Whether all that was begun is done."""
        return not self._begun

    def begin(self, work: Callable[[], None]) -> LateEvent:
        """Returns at once; the event is done when `work`, and all before it, is."""
        event = LateEvent()
        self._begun.append((work, event))
        self._free_at = max(self._free_at, self._time.now) + self._random.uniform(0, self._delay)
        self._time.after(self._free_at - self._time.now, lambda: self._end(event))
        return event

    def synchronize(self) -> None:
        """All that was begun is done now, as for a host that waits for it."""
        if self._begun:
            self._end(self._begun[-1][1])

    def _end(self, last: LateEvent) -> None:
        while not last.passed:
            work, event = self._begun.popleft()
            work()
            event.passed = True
