"""Who owns which block of the arena: references, the free map, quarantine. The one place that gives out blocks."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from legato_engine.kvcache.events import EventLog
from legato_engine.kvcache.prefix_cache import PrefixCache

_FREE, _TAKEN = b"\x01", b"\x00"


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """free + cached + used + quarantined = all blocks, always. `cached` ones are findable and evictable."""

    free: int
    cached: int
    used: int
    quarantined: int


class BlockPool:
    """Blocks 0 … `size` - 1. A block is free, cached (evictable), used (referenced) or quarantined.

    Several sequences may reference one block; they may all read it, and who wants to write to one that others
    reference copies it first. A quarantined block might still be written by a peer.
    """

    def __init__(self, size: int, events: EventLog) -> None:
        self.size = size
        self.events = events
        self.cache = PrefixCache(events)
        self._references = [0] * size
        self._free = bytearray(_FREE) * size  # a byte per block, since bytearray.find finds runs at memchr's speed
        self._free_count = size
        self._next = 0  # where the last search ended: runs stay whole for longer
        self._quarantined: set[int] = set()

    @property
    def available(self) -> int:
        """How many blocks `allocate` can give."""
        return self._free_count + self.cache.evictable

    def counts(self) -> BlockCounts:
        free, cached, quarantined = self._free_count, self.cache.evictable, len(self._quarantined)
        return BlockCounts(free, cached, self.size - free - cached - quarantined, quarantined)

    def references(self, block: int) -> int:
        return self._references[block]

    def held(self) -> dict[int, int]:
        """How many references there are on each used block."""
        return {block: count for block, count in enumerate(self._references) if count}

    def allocate(self, count: int, after: int | None = None) -> list[int] | None:
        """`count` blocks with one reference each, or None when there are not so many; cached ones are evicted only
        when no free ones are left. Prefers the blocks behind `after`, else long runs of neighbours."""
        if count > self.available:
            return None
        while self._free_count < count:
            self._set_free(self.cache.evict())
        blocks: list[int] = []
        if after is not None:
            start = after + 1
            while len(blocks) < count and start < self.size and self._free[start]:
                blocks.append(start)
                self._free[start] = 0
                start += 1
        want = count - len(blocks)
        while len(blocks) < count:
            want = min(want, count - len(blocks))
            start = self._find_run(want)
            if start < 0:
                want = max(1, want // 2)
                continue
            self._free[start : start + want] = _TAKEN * want
            blocks.extend(range(start, start + want))
            self._next = start + want
        self._free_count -= count
        for block in blocks:
            self._references[block] = 1
        return blocks

    def take(self, blocks: Iterable[int]) -> None:
        """One more reference on each of these used or cached blocks."""
        for block in blocks:
            if not self._references[block]:
                self.cache.used(block)
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one reference on each of these blocks, which are in the order of their sequence.

        Blocks without references become cached if they can be found, else free.
        """
        for block in reversed(blocks):  # leaves first, so that they are evicted first
            left = self._references[block] - 1
            if left < 0:
                raise ValueError(f"block {block} is not referenced")
            self._references[block] = left
            if not left:
                if self.cache.is_stored(block):
                    self.cache.unused(block)
                else:
                    self._set_free(block)

    def store(self, block: int, block_hash: bytes, parent: bytes | None) -> int:
        """Make a full block findable; returns the block that holds this content, with the caller's reference on it.

        Where another block holds it already, the caller's is given up for that one: a sequence's full blocks are always
        the findable ones, so that the ancestors of cached blocks are cached.
        """
        known = self.cache.find(block_hash)
        if known is None:
            self.cache.store(block, block_hash, parent)
            return block
        if known != block:
            self.take((known,))
            self.release((block,))
        return known

    def quarantine(self, blocks: Iterable[int]) -> None:
        """The owner gives up these blocks, but a peer may still write to them: nobody gets them until `readmit`."""
        for block in blocks:
            if self._references[block] != 1 or self.cache.is_stored(block):
                raise ValueError(f"block {block} is not one owner's alone")
            self._references[block] = 0
            self._quarantined.add(block)

    def readmit(self, blocks: Iterable[int]) -> None:
        """No peer writes to these quarantined blocks any more: they are free."""
        for block in blocks:
            self._quarantined.remove(block)
            self._set_free(block)

    def forget(self, blocks: Sequence[int]) -> None:
        """Nobody finds these blocks of one sequence any more, as far as they are its alone.

        What another one holds, or has computed further blocks from, stays: it served that one well.
        """
        stored = [block for block in blocks if self.cache.is_stored(block)]
        shared = sum(self._references[block] > 1 for block in stored)  # the first ones: who holds a block holds those
        self.cache.forget(stored[shared:])

    def check_integrity(self) -> None:
        """Raise AssertionError where a block is in two states or in none, or the counts are not those of the blocks."""
        self.cache.check_integrity()
        free = [block for block, is_free in enumerate(self._free) if is_free]
        assert self._free_count == len(free), f"{len(free)} blocks are free, {self._free_count} are counted"
        states = [*free, *self.cache.evictable_blocks(), *self.held(), *self._quarantined]
        if sorted(states) != list(range(self.size)):
            counts = Counter(states)
            wrong = next(block for block in range(self.size) if counts[block] != 1)
            raise AssertionError(f"block {wrong} is in {counts[wrong]} states of free, cached, used, quarantined")
        found = next((block for block in self.cache.stored_blocks() if self._free[block]), None)
        assert found is None, f"free block {found} can be found"

    def _find_run(self, length: int) -> int:
        run = _FREE * length
        start = self._free.find(run, self._next)
        return start if start >= 0 else self._free.find(run)

    def _set_free(self, block: int) -> None:
        self._free[block] = 1
        self._free_count += 1
