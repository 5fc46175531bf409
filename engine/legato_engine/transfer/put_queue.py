"""Puts on their way to the link: each begins once the device has written its blocks, in the order of the pushes.

Steps end in the order in which they were launched, so nobody waits here for an event that comes after the own one.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from legato_engine.transfer.checksum import ArenaMemory
from legato_engine.transfer.device import BlockCopy, DirectBlocks
from legato_engine.transfer.link import Link
from legato_engine.transfer.puts import BlockPut, spans
from legato_engine.transfer.staging import Staging


class PutSource(Protocol):
    """How the blocks of a put get to the link."""

    @property
    def largest(self) -> int | None:
        """How many of them one put may have; None for any number."""

    @property
    def waiting(self) -> bool:
        """Whether `advance` has something to look after."""

    def begin(self, put: BlockPut) -> bool:
        """Goes on with a put whose blocks are written; False where there is no room for it now."""

    def advance(self, wanted: Callable[[BlockPut], bool]) -> list[BlockPut]:
        """Puts that were begun and are not wanted any more before the link had them."""

    def ended(self, put: BlockPut) -> None:
        """The link does not read it any more."""


class PutQueue:
    """Of all hand-offs that a worker sends. Not a byte of a put is read here before its event is done."""

    def __init__(
        self, source: PutSource, wanted: Callable[[BlockPut], bool], dropped: Callable[[BlockPut], None]
    ) -> None:
        """A put that is not `wanted` any more before the link has it is `dropped`; the link tells the end of others."""
        self._source = source
        self._wanted = wanted
        self._dropped = dropped
        self._queued: deque[BlockPut] = deque()

    @property
    def largest(self) -> int | None:
        """How many blocks one put may have."""
        return self._source.largest

    @property
    def waiting(self) -> bool:
        """Whether `advance` has something to look after before the link tells of a put."""
        return self._source.waiting or bool(self._queued and not _written(self._queued[0]))

    def add(self, put: BlockPut) -> None:
        self._queued.append(put)
        self.advance()

    def ended(self, put: BlockPut) -> None:
        """The link has told so."""
        self._source.ended(put)

    def advance(self) -> None:
        """Begins what can begin."""
        unwanted = [put for put in self._queued if not self._wanted(put)]
        for put in unwanted:
            self._queued.remove(put)
        for put in unwanted + self._source.advance(self._wanted):
            self._dropped(put)
        while self._queued and _written(self._queued[0]) and self._source.begin(self._queued[0]):
            self._queued.popleft()


class FromArena:
    """Implements `PutSource` for an arena that the link reads itself."""

    largest = None
    waiting = False

    def __init__(self, link: Link, memory: ArenaMemory, checksum: bool) -> None:
        self._link = link
        self._memory = memory
        self._checksum = checksum

    def begin(self, put: BlockPut) -> bool:
        memory = self._memory
        put.sums = memory.sums(put.blocks) if self._checksum else [0] * len(put.blocks)
        where = spans(put.blocks, memory.address, put.targets, put.arena, memory.block_bytes)
        self._link.put(put.connection, where, put.tag)
        return True

    def advance(self, wanted: Callable[[BlockPut], bool]) -> list[BlockPut]:
        return []

    def ended(self, put: BlockPut) -> None:
        pass


class _FromDevice(ABC):
    """A put begins when the device has done something for it, and made the sums; in the order of the puts."""

    def __init__(self, link: Link, block_bytes: int, checksum: bool) -> None:
        self._link = link
        self._block_bytes = block_bytes
        self._checksum = checksum
        self._begun: deque[tuple[BlockPut, BlockCopy]] = deque()

    @property
    def waiting(self) -> bool:
        return bool(self._begun)

    def advance(self, wanted: Callable[[BlockPut], bool]) -> list[BlockPut]:
        unwanted = []
        while self._begun and self._begun[0][1].done():
            put, copy = self._begun.popleft()
            if wanted(put):
                self._put(put, copy)
            else:
                self.ended(put)
                unwanted.append(put)
        return unwanted

    @abstractmethod
    def ended(self, put: BlockPut) -> None:
        """The link does not read it any more."""

    def _put(self, put: BlockPut, copy: BlockCopy) -> None:
        put.sums = copy.sums() if self._checksum else [0] * len(put.blocks)
        blocks, local = self._place(put)
        self._link.put(put.connection, spans(blocks, local, put.targets, put.arena, self._block_bytes), put.tag)

    @abstractmethod
    def _place(self, put: BlockPut) -> tuple[Sequence[int], int]:
        """Where the link reads the put's blocks: their numbers, and where number 0 begins."""


class FromRing(_FromDevice):
    """Implements `PutSource` for an arena that only the device reaches: blocks go to slots of the ring first."""

    def __init__(self, link: Link, staging: Staging, block_bytes: int, checksum: bool) -> None:
        super().__init__(link, block_bytes, checksum)
        self._staging = staging
        self._slots: dict[BlockPut, tuple[int, ...]] = {}

    @property
    def largest(self) -> int:
        return self._staging.largest_put

    def begin(self, put: BlockPut) -> bool:
        slots = self._staging.ring.take(len(put.blocks))
        if slots is None:
            return False
        self._slots[put] = slots
        self._begun.append((put, self._staging.copies.to_slots(put.blocks, slots)))
        return True

    def ended(self, put: BlockPut) -> None:
        self._staging.ring.give_back(self._slots.pop(put))

    def _place(self, put: BlockPut) -> tuple[Sequence[int], int]:
        return self._slots[put], self._staging.copies.address


class FromDevice(_FromDevice):
    """Implements `PutSource` for an arena of a device that the link reads itself: only the sums are made first."""

    largest = None

    def __init__(self, link: Link, memory: ArenaMemory, direct: DirectBlocks, checksum: bool) -> None:
        super().__init__(link, memory.block_bytes, checksum)
        self._memory = memory
        self._direct = direct

    def begin(self, put: BlockPut) -> bool:
        self._begun.append((put, self._direct.leaving(put.blocks)))
        return True

    def ended(self, put: BlockPut) -> None:
        pass

    def _place(self, put: BlockPut) -> tuple[Sequence[int], int]:
        return put.blocks, self._memory.address


def _written(put: BlockPut) -> bool:
    return put.after is None or put.after.done()
