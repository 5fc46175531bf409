"""The pool of the arena's blocks: references, the free map, quarantine. The only place that allocates blocks."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from legato_engine.kvcache.disk_tier import DiskTier
from legato_engine.kvcache.events import EventLog
from legato_engine.kvcache.host_tier import HostTier
from legato_engine.kvcache.prefix_cache import PrefixCache
from legato_engine.kvcache.reach import follow_prefixes
from legato_engine.kvcache.tier_counts import TierCounts
from legato_protocol.wire.kv_events import DISK, HOST, TIERS, KVEvent

_FREE, _TAKEN = b"\x01", b"\x00"


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """The sum is always the number of all blocks. `cached` blocks can be matched and evicted."""

    free: int
    cached: int
    used: int
    quarantined: int


@dataclass(frozen=True, slots=True)
class TierSizes:
    """Blocks that slots of the host and files can keep."""

    slots: int = 0
    files: int = 0


ARENA_ONLY = TierSizes()


class BlockPool:
    """Blocks 0 … `size` - 1 of all groups. A block is free, cached (evictable), used (referenced) or quarantined.

    Several sequences may reference and read a block; a sequence copies a shared block before it writes to it. A peer
    might still write to a quarantined block.
    """

    def __init__(
        self,
        size: int,
        events: EventLog,
        windows: tuple[int, ...] = (),
        block_size: int = 1,
        tiers: TierSizes = ARENA_ONLY,
    ) -> None:
        """`windows` has a window for each group after the first; blocks hold `block_size` positions. Evicted blocks go
        to `tiers`."""
        self.size = size
        self.events = events
        of_host, of_disk = EventLog(events.epoch, HOST), EventLog(events.epoch, DISK)
        self.disk = DiskTier(tiers.files, follow_prefixes(windows, block_size, of_disk), of_disk)
        self.host = HostTier(tiers.slots, follow_prefixes(windows, block_size, of_host), of_host, self.disk)
        self.cache = PrefixCache(follow_prefixes(windows, block_size, events), self.host)
        self.uses = [0] * size  # times that each block was allocated: with another number, it has other content
        self._references = [0] * size
        self._free = bytearray(_FREE) * size  # a byte per block, since bytearray.find finds runs at memchr's speed
        self._free_count = size
        self._next = 0  # end of the last search, so that long runs stay whole for longer
        self._quarantined: set[int] = set()

    @property
    def available(self) -> int:
        """Number of blocks that can be allocated."""
        return self._free_count + self.cache.evictable

    def counts(self) -> BlockCounts:
        free, cached, quarantined = self._free_count, self.cache.evictable, len(self._quarantined)
        return BlockCounts(free, cached, self.size - free - cached - quarantined, quarantined)

    def take_events(self) -> tuple[KVEvent, ...]:
        """Returns the changes of all tiers since the last call, in order within each tier."""
        return self.events.take() + self.host.events.take() + self.disk.events.take()

    def tier_counts(self) -> dict[str, TierCounts]:
        """Counts of tiers slower than the arena, by name."""
        counts = {TIERS[HOST]: self.host.counts(), TIERS[DISK]: self.disk.counts()}
        return {name: each for name, each in counts.items() if each.slots}

    def references(self, block: int) -> int:
        return self._references[block]

    def used_blocks(self) -> dict[int, int]:
        """Number of references to each used block."""
        return {block: count for block, count in enumerate(self._references) if count}

    def allocate(self, count: int, after: int | None = None) -> list[int] | None:
        """Allocates `count` blocks with one reference each; None if too few are available.

        Prefers the blocks that follow `after`, else long runs of neighbours. Evicts cached blocks only if no free ones
        are left.
        """
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
            self.uses[block] += 1
        return blocks

    def take(self, blocks: Iterable[int]) -> None:
        """Adds a reference to each of these used or cached blocks."""
        for block in blocks:
            if not self._references[block]:
                self.cache.mark_used(block)
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Removes a reference from each of these blocks, which are in the order of their sequence.

        Blocks without references become cached if they are stored, else free.
        """
        for block in reversed(blocks):  # leaves first, so that they are evicted first
            left = self._references[block] - 1
            if left < 0:
                raise ValueError(f"block {block} is not referenced")
            self._references[block] = left
            if not left:
                if self.cache.is_stored(block):
                    self.cache.mark_unused(block)
                else:
                    self._set_free(block)

    def store(self, block: int, block_hash: bytes, parent: bytes | None, group: int = 0) -> int:
        """Adds a full block to the prefix cache. Returns the block with this content, with the caller's reference.

        If another block of the group has the content already, the caller's block is released for that one: a sequence's
        full blocks are always the stored ones, so that the ancestors of cached blocks are cached.
        """
        known = self.cache.find(block_hash, group)
        if known is None:
            self.cache.store(block, block_hash, parent, group)
            return block
        if known != block:
            self.take((known,))
            self.release((block,))
        return known

    def has(self, group: int, block_hash: bytes) -> bool:
        """True if the arena or a slot of the host has this block."""
        return self.cache.find(block_hash, group) is not None or self.host.has(group, block_hash)

    def restore(self, slot: int, block: int) -> None:
        """Plans to fill a block in use from a held slot of the host, and adds it to the prefix cache now."""
        block_hash, parent, group = self.host.restore(slot, block)
        self.cache.store(block, block_hash, parent, group)

    def quarantine(self, blocks: Iterable[int]) -> None:
        """The owner releases these blocks, but a peer may still write to them: unavailable until `readmit`."""
        for block in blocks:
            if self._references[block] != 1 or self.cache.is_stored(block):
                raise ValueError(f"block {block} does not have a single owner")
            self._references[block] = 0
            self._quarantined.add(block)

    def readmit(self, blocks: Iterable[int]) -> None:
        """No peer writes to these quarantined blocks any more: frees them."""
        for block in blocks:
            self._quarantined.remove(block)
            self._set_free(block)

    def forget(self, blocks: Sequence[int]) -> None:
        """Removes the blocks of the first group that only this sequence uses from the prefix cache, and the blocks of
        windows with the same positions.

        Blocks that other sequences use, or have computed further blocks from, stay: those sequences had no fault.
        """
        stored = [block for block in blocks if self.cache.is_stored(block)]
        shared = sum(self._references[block] > 1 for block in stored)  # these come first: owners have all ancestors
        for block in self.cache.forget(stored[shared:]):
            if not self._references[block]:
                self._set_free(block)

    def check_integrity(self) -> None:
        """Raises AssertionError if a block is in two states or in none, or the counts are wrong."""
        self.cache.check_integrity()
        free = [block for block, is_free in enumerate(self._free) if is_free]
        assert self._free_count == len(free), f"{len(free)} blocks are free, {self._free_count} are counted"
        states = [*free, *self.cache.evictable_blocks(), *self.used_blocks(), *self._quarantined]
        if sorted(states) != list(range(self.size)):
            counts = Counter(states)
            wrong = next(block for block in range(self.size) if counts[block] != 1)
            raise AssertionError(f"block {wrong} is in {counts[wrong]} states of free, cached, used, quarantined")
        wrong_block = next((block for block in self.cache.stored_blocks() if self._free[block]), None)
        assert wrong_block is None, f"free block {wrong_block} is in the prefix cache"

    def _find_run(self, length: int) -> int:
        run = _FREE * length
        start = self._free.find(run, self._next)
        return start if start >= 0 else self._free.find(run)

    def _set_free(self, block: int) -> None:
        self._free[block] = 1
        self._free_count += 1
