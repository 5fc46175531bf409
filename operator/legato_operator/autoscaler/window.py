"""Desired sizes of the last seconds: below some a pool may not shrink yet, and above others it may not grow yet.

The last worker instead depends on whether there was any demand, however small.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_GAP = 30.0  # seconds without a decision after which the window starts again
CONFIRMED_AFTER = 30.0  # seconds for which a sampled need must last before a pool grows: half of the sample's minute


@dataclass(frozen=True)
class KeptSize:
    """A size that a pool keeps."""

    until: float  # time from which it no longer counts
    workers: int


@dataclass(frozen=True)
class Window:
    """Desired sizes, largest first. A size is dropped once a larger one is kept for as long."""

    sizes: tuple[KeptSize, ...] = ()
    decided: float | None = None  # time of the last decision
    busy: float = float("-inf")  # time of the last demand
    sampled: tuple[KeptSize, ...] = ()  # sizes for sampled needs, smallest first, until they are no longer recent

    def add(self, now: float, desired: Sequence[KeptSize], sampled: int | None, current: int, idle: bool) -> "Window":
        """Returns the window with the desired sizes of `now`, at least one, without the sizes that no longer count.

        `sampled` is the size for sampled needs, or None if a signal is missing. The first sizes after a restart or a
        gap are at least the `current` one, because demand meanwhile is unknown. A first sampled size is confirmed,
        because the sample of a new process is nearly empty; after a gap or missing signals, at most the `current` one.
        """
        if self.decided is None or now - self.decided > LONGEST_GAP:
            desired, idle = [KeptSize(each.until, max(each.workers, current)) for each in desired], False
        known = (*(each for each in self.sizes if each.until > now), *desired)
        rising = tuple(each for each in self.sampled if each.until > now)
        if sampled is not None:
            sampled = min(sampled, current) if self.decided is not None and not rising else sampled
            smaller = (each for each in rising if each.workers < sampled)
            rising = (*smaller, KeptSize(now + CONFIRMED_AFTER, sampled))
        return Window(_descending(known), now, self.busy if idle else now, rising)

    def lowest(self, now: float, idle_after: float) -> int:
        """Returns the smallest allowed size: the maximum, and zero only after `idle_after` seconds without demand."""
        return self.highest if self.highest > 1 else int(now - self.busy < idle_after)

    @property
    def confirmed(self) -> int:
        """Largest size that sampled needs have asked for throughout the last `CONFIRMED_AFTER` seconds."""
        return self.sampled[0].workers if self.sampled else 0

    def shrinks_at(self, current: int) -> float:
        """Returns the time from which a pool of the `current` size may shrink; -inf if no size keeps it."""
        return max((each.until for each in self.sizes if each.workers >= current), default=-math.inf)

    @property
    def highest(self) -> int:
        """Maximum of the sizes, of which there must be one."""
        return self.sizes[0].workers

    @property
    def until(self) -> float:
        """Time until which the maximum is kept."""
        return self.sizes[0].until


def _descending(known: Sequence[KeptSize]) -> tuple[KeptSize, ...]:
    """Returns the sizes that are kept for longer than every larger one."""
    kept: list[KeptSize] = []
    for each in sorted(known, key=lambda size: (-size.workers, -size.until)):
        if not kept or each.until > kept[-1].until:
            kept.append(each)
    return tuple(kept)
