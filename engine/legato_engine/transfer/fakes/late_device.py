"""A fake asynchronous device with random delays, in one process and virtual time: for tests and simulations.

A stream runs its work in order, each piece after a random delay. Writes are visible only then, so that premature reads
return the earlier contents.
"""

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.fakes.virtual_time import VirtualTime


@dataclass(slots=True, eq=False)
class LateEvent:
    """Implements `DeviceEvent`."""

    passed: bool = False

    def done(self) -> bool:
        return self.passed


@dataclass(slots=True, eq=False)
class LateCopy(LateEvent):
    """Implements `BlockCopy`."""

    results: list[int] = field(default_factory=list)  # the sums, once done

    def sums(self) -> list[int]:
        assert self.passed, "sums are read before they are computed"
        return self.results


Late = TypeVar("Late", bound=LateEvent)


class LateStream:
    """Runs work in order, each piece up to `delay` seconds after the previous one."""

    def __init__(self, time: VirtualTime, random: Random, delay: float) -> None:
        self._time = time
        self._random = random
        self._delay = delay
        self._free_at = 0.0
        self._pending: deque[tuple[Callable[[], None], LateEvent]] = deque()

    @property
    def idle(self) -> bool:
        """True if all work is done."""
        return not self._pending

    def begin(self, work: Callable[[], None]) -> LateEvent:
        """Queues `work`. The event is done when this and all earlier work is."""
        return self.begin_with(work, LateEvent())

    def begin_with(self, work: Callable[[], None], event: Late) -> Late:
        """As `begin`, with an existing event."""
        self._pending.append((work, event))
        self._free_at = max(self._free_at, self._time.now) + self._random.uniform(0, self._delay)
        self._time.after(self._free_at - self._time.now, lambda: self._end(event))
        return event

    def synchronize(self) -> None:
        """Finishes all work now, like a host that waits for the device."""
        if self._pending:
            self._end(self._pending[-1][1])

    def _end(self, last: LateEvent) -> None:
        while not last.passed:
            work, event = self._pending.popleft()
            work()
            event.passed = True


class LateCopies:
    """Implements `BlockCopies` with a stream for each direction. Bytes are read when they are copied, not earlier."""

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
        sums: list[int] = []

        def copy() -> None:
            for there, here in zip(targets, sources, strict=True):
                ctypes.memmove(target.address_of(there), source.address_of(here), source.block_bytes)
            sums.extend(self._arena.sums(blocks))

        return stream.begin_with(copy, LateCopy(results=sums))


class LateDirect:
    """Implements `DirectBlocks` with a stream for each direction. Bytes are read when the stream runs the work."""

    def __init__(self, arena: ArenaMemory, outward: LateStream, inward: LateStream) -> None:
        self._arena = arena
        self._outward, self._inward = outward, inward

    def sum_outgoing(self, blocks: Sequence[int]) -> LateCopy:
        return self._sum(self._outward, blocks)

    def sum_incoming(self, blocks: Sequence[int]) -> LateCopy:
        return self._sum(self._inward, blocks)

    def _sum(self, stream: LateStream, blocks: Sequence[int]) -> LateCopy:
        sums: list[int] = []
        return stream.begin_with(lambda: sums.extend(self._arena.sums(blocks)), LateCopy(results=sums))
