"""A queue of puts: each begins once the device has written its blocks, in the order of the pushes.

Steps end in the order in which they were launched, so no put waits for a later event than its own.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.blocks.puts import BlockPut, spans
from legato_engine.transfer.device.interface import BlockCopy, DirectBlocks
from legato_engine.transfer.device.staging import Staging
from legato_engine.transfer.link import PutSpan


class Puts(Protocol):
    """The part of a link that takes puts."""

    def put(self, connection: int, spans: Sequence[PutSpan], tag: int) -> None: ...


class PutSource(Protocol):
    """The way from the blocks of a put to the link."""

    @property
    def largest(self) -> int | None:
        """Most blocks of one put; None for any number."""

    @property
    def waiting(self) -> bool:
        """True if `advance` has to be called again soon."""

    def begin(self, put: BlockPut) -> bool:
        """Starts a put whose blocks are written; False if there is no room for it now."""

    def advance(self, wanted: Callable[[BlockPut], bool]) -> list[BlockPut]:
        """Passes started puts on to the link. Returns those that are no longer wanted."""

    def release(self, put: BlockPut) -> None:
        """The link no longer reads the put's blocks."""


class PutQueue:
    """The puts of all hand-offs that a worker sends. Blocks are not read before the put's event is done."""

    def __init__(self, source: PutSource, wanted: Callable[[BlockPut], bool], drop: Callable[[BlockPut], None]) -> None:
        """Calls `drop` for puts that are not `wanted` any more before the link has them."""
        self._source = source
        self._wanted = wanted
        self._drop = drop
        self._queued: deque[BlockPut] = deque()

    @property
    def largest(self) -> int | None:
        """Most blocks of one put; None for any number."""
        return self._source.largest

    @property
    def waiting(self) -> bool:
        """True if `advance` has to be called again soon."""
        return self._source.waiting or bool(self._queued and not _written(self._queued[0]))

    def add(self, put: BlockPut) -> None:
        self._queued.append(put)
        self.advance()

    def release(self, put: BlockPut) -> None:
        """The link has reported the put's end."""
        self._source.release(put)

    def advance(self) -> None:
        """Drops unwanted puts and starts those that can start."""
        unwanted = [put for put in self._queued if not self._wanted(put)]
        for put in unwanted:
            self._queued.remove(put)
        for put in unwanted + self._source.advance(self._wanted):
            self._drop(put)
        while self._queued and _written(self._queued[0]) and self._source.begin(self._queued[0]):
            self._queued.popleft()


class PutSources:
    """Implements `PutSource` for puts that are written to the receiver, and those that it copies itself."""

    def __init__(self, written: PutSource, pulled: PutSource) -> None:
        self._written = written
        self._pulled = pulled

    @property
    def largest(self) -> int | None:
        return self._written.largest

    @property
    def waiting(self) -> bool:
        return self._written.waiting or self._pulled.waiting

    def begin(self, put: BlockPut) -> bool:
        return self._of(put).begin(put)

    def advance(self, wanted: Callable[[BlockPut], bool]) -> list[BlockPut]:
        return self._written.advance(wanted) + self._pulled.advance(wanted)

    def release(self, put: BlockPut) -> None:
        self._of(put).release(put)

    def _of(self, put: BlockPut) -> PutSource:
        return self._pulled if put.pulled else self._written


class FromArena:
    """Implements `PutSource` for an arena in host memory, which the link reads."""

    largest = None
    waiting = False

    def __init__(self, link: Puts, memory: ArenaMemory, checksum: bool) -> None:
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

    def release(self, put: BlockPut) -> None:
        pass


class _FromDevice(ABC):
    """Starts a put, in order, once the device has prepared it and computed the sums."""

    def __init__(self, link: Puts, block_bytes: int, checksum: bool) -> None:
        self._link = link
        self._block_bytes = block_bytes
        self._checksum = checksum
        self._started: deque[tuple[BlockPut, BlockCopy]] = deque()

    @property
    def waiting(self) -> bool:
        return bool(self._started)

    def advance(self, wanted: Callable[[BlockPut], bool]) -> list[BlockPut]:
        unwanted = []
        while self._started and self._started[0][1].done():
            put, copy = self._started.popleft()
            if wanted(put):
                self._put(put, copy)
            else:
                self.release(put)
                unwanted.append(put)
        return unwanted

    @abstractmethod
    def release(self, put: BlockPut) -> None:
        """The link no longer reads the put's blocks."""

    def _put(self, put: BlockPut, copy: BlockCopy) -> None:
        put.sums = copy.sums() if self._checksum else [0] * len(put.blocks)
        blocks, local = self._place(put)
        self._link.put(put.connection, spans(blocks, local, put.targets, put.arena, self._block_bytes), put.tag)

    @abstractmethod
    def _place(self, put: BlockPut) -> tuple[Sequence[int], int]:
        """The block numbers that the link reads, and the address of number 0."""


class FromRing(_FromDevice):
    """Implements `PutSource` for an arena that the link does not reach: copies blocks to slots of the ring first."""

    def __init__(self, link: Puts, staging: Staging, block_bytes: int, checksum: bool) -> None:
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
        self._started.append((put, self._staging.copies.to_slots(put.blocks, slots)))
        return True

    def release(self, put: BlockPut) -> None:
        self._staging.ring.give_back(self._slots.pop(put))

    def _place(self, put: BlockPut) -> tuple[Sequence[int], int]:
        return self._slots[put], self._staging.copies.address


class FromDevice(_FromDevice):
    """Implements `PutSource` for an arena in device memory that the link reads: only the sums come first."""

    largest = None

    def __init__(self, link: Puts, memory: ArenaMemory, direct: DirectBlocks, checksum: bool) -> None:
        super().__init__(link, memory.block_bytes, checksum)
        self._memory = memory
        self._direct = direct

    def begin(self, put: BlockPut) -> bool:
        self._started.append((put, self._direct.sum_outgoing(put.blocks)))
        return True

    def release(self, put: BlockPut) -> None:
        pass

    def _place(self, put: BlockPut) -> tuple[Sequence[int], int]:
        return put.blocks, self._memory.address


def _written(put: BlockPut) -> bool:
    return put.after is None or put.after.done()
