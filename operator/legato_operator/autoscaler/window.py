"""The highest desired size of the last seconds, to which a pool may shrink.

The last worker instead depends on whether there was any demand, however small.
"""

from dataclasses import dataclass

LONGEST_GAP = 30.0  # seconds without a decision after which the window starts again


@dataclass(frozen=True)
class Window:
    """Desired sizes with their times, oldest first. Sizes exceeded by a later one are dropped, so they descend."""

    sizes: tuple[tuple[float, int], ...] = ()
    busy: float = float("-inf")  # time of the last demand

    def add(self, now: float, size: int, current: int, seconds: float, idle: bool) -> "Window":
        """Returns the window with the desired size of `now`, without sizes older than `seconds`.

        The first size after a restart or a gap is at least the `current` one, because demand meanwhile is unknown.
        """
        last = self.sizes[-1][0] if self.sizes else None
        if last is None or now - last > LONGEST_GAP:
            size, idle = max(size, current), False
        kept = tuple((at, each) for at, each in self.sizes if each > size and now - at < seconds)
        return Window((*kept, (now, size)), self.busy if idle else now)

    def lowest(self, now: float, idle_after: float) -> int:
        """Returns the smallest allowed size: the maximum, and zero only after `idle_after` seconds without demand."""
        return self.highest if self.highest > 1 else int(now - self.busy < idle_after)

    @property
    def highest(self) -> int:
        """Maximum of the sizes, of which there must be one."""
        return self.sizes[0][1]

    @property
    def since(self) -> float:
        """Time of the maximum."""
        return self.sizes[0][0]
