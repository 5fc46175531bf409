"""An index of blocks in files, and the reads and writes for a thread to do. Pure.

Files exchange blocks with slots of the host only: a block is written after it was saved to a slot, and read into a slot
before a sequence that needs it starts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from legato_engine.kvcache.chain_order import ChainOrder
from legato_engine.kvcache.events import EventLog
from legato_engine.kvcache.moves import Content
from legato_engine.kvcache.reach import Prefixes, StoredPrefixes
from legato_engine.kvcache.tier_counts import TierCounts
from legato_protocol.wire.kv_events import DISK

MOST_WRITES = 16  # outstanding; further blocks wait in their slots, which may be reused before
PAUSE = 10.0  # seconds without writes after a failed write, for example because the disk is full
REPORTED = 600.0  # seconds for which an error is reported as the tier's problem
_SMOOTHING = 0.2


@dataclass(frozen=True, slots=True)
class WriteBlock:
    """Writes a slot to a file. The slot is not changed until then."""

    slot: int
    content: Content


@dataclass(frozen=True, slots=True)
class ReadBlock:
    """Reads a file into a slot that nothing else uses."""

    slot: int
    content: Content


@dataclass(frozen=True, slots=True)
class RemoveBlock:
    content: Content


Order = WriteBlock | ReadBlock | RemoveBlock


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a read or write; `error` says why it failed."""

    order: WriteBlock | ReadBlock
    seconds: float = 0.0
    error: str = ""


class DiskTier:
    """At most `capacity` blocks in files; sequences not used for longest lose their last blocks first.

    Without capacity, it is empty.

    `prefixes` follows the blocks that are in the arena, in a slot or in a file.
    """

    def __init__(self, capacity: int = 0, prefixes: Prefixes | None = None, events: EventLog | None = None) -> None:
        self.capacity = capacity
        self.events = events or EventLog("", DISK)
        self._prefixes = prefixes or StoredPrefixes(self.events)
        self._files: dict[tuple[int, bytes], Content] = {}
        self._order = ChainOrder()
        self._above: set[tuple[int, bytes]] = set()  # blocks in the arena or in a slot
        self._writing: set[tuple[int, bytes]] = set()
        self._doubted: set[tuple[int, bytes]] = set()  # blocks to remove once they are written
        self._orders: list[Order] = []
        self._now = self._paused_until = 0.0
        self.written = self.read = self.evicted = self.errors = 0
        self.write_seconds = self.read_seconds = 0.0
        self.seconds_per_read = 0.0  # smoothed; 0 before the first
        self._problem, self._problem_ends = "", inf  # the last error; inf: set by the next plan

    def __len__(self) -> int:
        return len(self._files)

    def counts(self) -> TierCounts:
        return TierCounts(
            self.capacity, len(self), self.written, self.read, self.evicted,
            self.write_seconds, self.read_seconds, self.errors, self._problem,
        )  # fmt: skip

    def take_orders(self) -> list[Order]:
        """Returns the orders since the last call, to be carried out one after another."""
        orders, self._orders = self._orders, []
        return orders

    # ── lookups ──

    def has(self, group: int, block_hash: bytes) -> bool:
        return (group, block_hash) in self._files

    def is_above(self, content: Content) -> bool:
        """True if the block is in the arena or in a slot."""
        return (content.group, content.block_hash) in self._above

    def longest(self, hashes: Sequence[bytes], above: int) -> int:
        """Returns the blocks of a sequence's longest usable prefix; arena and slots have the first `above` ones."""
        count = above
        while count < len(hashes) and ((0, hashes[count]) in self._files or (0, hashes[count]) in self._above):
            count += 1
        return self._prefixes.longest(hashes[:count])

    # ── the tiers above ──

    def on_gained(self, content: Content) -> None:
        """The arena or a slot has this block now; neither had it before."""
        if self.capacity:
            key = content.group, content.block_hash
            self._above.add(key)
            if key not in self._files:
                self._prefixes.add(content.group, content.block_hash, content.parent)

    def on_lost(self, content: Content) -> None:
        """Neither the arena nor a slot has this block any longer."""
        if self.capacity:
            key = content.group, content.block_hash
            self._above.remove(key)
            if key not in self._files:
                self._prefixes.remove(content.group, content.block_hash)

    def on_forgotten(self, content: Content) -> None:
        """The content is in doubt; call it before `on_lost`."""
        key = content.group, content.block_hash
        if key in self._writing:
            self._doubted.add(key)
        if key in self._files:
            self._remove(key)

    # ── files ──

    def adopt(self, contents: Iterable[Content], refused: int = 0) -> None:
        """Adds files that an earlier process wrote, least recently used first, and removes those beyond the capacity.
        `refused` ones were removed already."""
        if refused:
            self.errors, self._problem = refused, f"{refused} files with KV of another revision, or incomplete"
        for content in contents:
            self._order.expect(content)
            self._add(content)
            self._prefixes.add(content.group, content.block_hash, content.parent)
        self._make_room(0)

    def begin(self, now: float) -> None:
        """A plan begins."""
        self._now = now
        self._problem_ends = min(self._problem_ends, now + REPORTED)
        if now >= self._problem_ends:
            self._problem = ""

    @property
    def writes(self) -> bool:
        """True if another write may be ordered now."""
        return len(self._writing) < min(MOST_WRITES, self.capacity) and self._now >= self._paused_until

    def write(self, slot: int, content: Content) -> bool:
        """Orders to write a slot; False if the block is in a file, or will be, or if no file can be evicted."""
        key = content.group, content.block_hash
        if key in self._files or key in self._writing:
            return False
        self._order.expect(content)
        if not self._make_room(1):
            self._order.forget(content)
            return False
        self._writing.add(key)
        self._orders.append(WriteBlock(slot, content))
        return True

    def order_read(self, slot: int, group: int, block_hash: bytes) -> ReadBlock:
        """Orders to read a block that `has` into a slot."""
        order = ReadBlock(slot, self._files[group, block_hash])
        self._order.use((group, block_hash), self._now)
        self._orders.append(order)
        return order

    def on_done(self, outcome: Outcome) -> None:
        """A read or write has ended."""
        content = outcome.order.content
        key = content.group, content.block_hash
        if outcome.error:
            self.errors += 1
            self._problem, self._problem_ends = outcome.error, inf
        if isinstance(outcome.order, WriteBlock):
            self._on_written(key, content, outcome)
        elif outcome.error:
            if key in self._files:
                self._remove(key)
        else:
            self.read += 1
            self.read_seconds += outcome.seconds
            weight = _SMOOTHING if self.seconds_per_read else 1.0
            self.seconds_per_read += weight * (outcome.seconds - self.seconds_per_read)

    def check_integrity(self) -> None:
        """Raises AssertionError if there are more files than allowed, or usable prefixes are wrong."""
        assert len(self._files) + len(self._writing) <= self.capacity, "more blocks in files than allowed"
        assert not self._writing & self._files.keys(), "a block with a file is written"
        assert self._doubted <= self._writing
        self._order.check_integrity(self._files, len(self._writing))
        self._prefixes.check_integrity()

    # ── internals ──

    def _on_written(self, key: tuple[int, bytes], content: Content, outcome: Outcome) -> None:
        self._writing.remove(key)
        doubted = key in self._doubted
        self._doubted.discard(key)
        if outcome.error:
            self._paused_until = self._now + PAUSE
            self._order.forget(content)
            return
        self.written += 1
        self.write_seconds += outcome.seconds
        if doubted:
            self._orders.append(RemoveBlock(content))
            self._order.forget(content)
            return
        self._add(content)
        if key not in self._above:
            self._prefixes.add(content.group, content.block_hash, content.parent)

    def _make_room(self, blocks: int) -> bool:
        """Evicts files until there is room for `blocks` more; False if those being written continue all others."""
        while len(self._files) + len(self._writing) + blocks > self.capacity:
            key = self._order.first()
            if key is None:
                return False
            self._remove(key)
            self.evicted += 1
        return True

    def _add(self, content: Content) -> None:
        self._files[content.group, content.block_hash] = content
        self._order.add(content, self._now)

    def _remove(self, key: tuple[int, bytes]) -> None:
        content = self._files.pop(key)
        self._order.remove(content)
        self._orders.append(RemoveBlock(content))
        if key not in self._above:
            self._prefixes.remove(content.group, content.block_hash)
