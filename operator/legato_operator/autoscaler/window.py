"""The highest wish of the last seconds: a pool shrinks only to what all of them allow.

The last worker is another matter: it depends on whether anything was asked, and not on how much.
"""

from dataclasses import dataclass

LONGEST_GAP = 30.0  # seconds without a decision, after which nothing is known of what would have been wished meanwhile


@dataclass(frozen=True)
class Window:
    """Wishes with their times, oldest first. A wish that a later one exceeds is not kept, so they descend."""

    wishes: tuple[tuple[float, int], ...] = ()
    busy: float = float("-inf")  # when something arrived or ran last

    def add(self, now: float, wish: int, current: int, seconds: float, idle: bool) -> "Window":
        """With the wish of `now`, without those older than `seconds`.

        The first one after a restart, or after a gap, is not less than the `current` size: nobody was looking.
        """
        last = self.wishes[-1][0] if self.wishes else None
        if last is None or now - last > LONGEST_GAP:
            wish, idle = max(wish, current), False
        kept = tuple((at, of) for at, of in self.wishes if of > wish and now - at < seconds)
        return Window((*kept, (now, wish)), self.busy if idle else now)

    def allows(self, now: float, idle_after: float) -> int:
        """The size that all of it allows. Down to one by the maximum; none after `idle_after` seconds of nothing."""
        return self.highest if self.highest > 1 else int(now - self.busy < idle_after)

    @property
    def highest(self) -> int:
        """The maximum; there must be a wish."""
        return self.wishes[0][1]

    @property
    def since(self) -> float:
        """When the maximum was wished last."""
        return self.wishes[0][0]
