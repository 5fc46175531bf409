"""A device that works by itself and finishes late, in one process and virtual time: for tests and simulations.

It does what it is told in the order of one stream, each piece at a time that nobody knows before. What it writes is
there no earlier, so whoever reads too early reads what was there before.
"""

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from legato_engine.transfer.checksum import ArenaMemory
from legato_engine.transfer.virtual_time import VirtualTime


@dataclass(slots=True, eq=False)
class LateEvent:
    """Implements `DeviceEvent`."""

    passed: bool = False

    def done(self) -> bool:
        return self.passed


@dataclass(slots=True, eq=False)
class LateCopy(LateEvent):
    """Implements `BlockCopy`."""

    found: list[int] = field(default_factory=list)  # sums, filled in when it is done

    def sums(self) -> list[int]:
        assert self.passed, "sums are read before they were made"
        return self.found


Late = TypeVar("Late", bound=LateEvent)


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
        return self.begin_with(work, LateEvent())

    def begin_with(self, work: Callable[[], None], event: Late) -> Late:
        """As `begin`, with an event that there is already."""
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


class LateCopies:
    """Implements `BlockCopies` with a stream for each direction. Bytes are read when they are copied, not before."""

    def __init__(self, arena: ArenaMemory, slots: ArenaMemory, outward: LateStream, inward: LateStream) -> None:
        self.address = slots.address
        self._arena, self._slots = arena, slots
        self._outward, self._inward = outward, inward

    def to_slots(self, blocks: Sequence[int], slots: Sequence[int]) -> LateCopy:
        return self._begin(self._outward, self._slots, slots, self._arena, blocks, blocks)

    def to_blocks(self, slots: Sequence[int], blocks: Sequence[int]) -> LateCopy:
        return self._begin(self._inward, self._arena, blocks, self._slots, slots, blocks)

    def _begin(
        self,
        stream: LateStream,
        target: ArenaMemory,
        targets: Sequence[int],
        source: ArenaMemory,
        sources: Sequence[int],
        blocks: Sequence[int],
    ) -> LateCopy:
        found: list[int] = []

        def copy() -> None:
            for there, here in zip(targets, sources, strict=True):
                ctypes.memmove(target.address_of(there), source.address_of(here), source.block_bytes)
            found.extend(self._arena.sums(blocks))

        return stream.begin_with(copy, LateCopy(found=found))


class LateDirect:
    """Implements `DirectBlocks` with a stream for each direction. Bytes are read when the stream has come so far."""

    def __init__(self, arena: ArenaMemory, outward: LateStream, inward: LateStream) -> None:
        self._arena = arena
        self._outward, self._inward = outward, inward

    def leaving(self, blocks: Sequence[int]) -> LateCopy:
        return self._sum(self._outward, blocks)

    def arrived(self, blocks: Sequence[int]) -> LateCopy:
        return self._sum(self._inward, blocks)

    def _sum(self, stream: LateStream, blocks: Sequence[int]) -> LateCopy:
        found: list[int] = []
        return stream.begin_with(lambda: found.extend(self._arena.sums(blocks)), LateCopy(found=found))
