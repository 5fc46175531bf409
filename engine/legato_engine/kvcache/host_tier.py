"""Slots in the host's memory for blocks that the arena evicts, and planned moves between arena and slots."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from legato_engine.kvcache.disk_tier import DiskTier, Outcome, WriteBlock
from legato_engine.kvcache.events import EventLog
from legato_engine.kvcache.moves import Content, Move, Restore, Save
from legato_engine.kvcache.reach import Prefixes, StoredPrefixes
from legato_engine.kvcache.tier_counts import TierCounts
from legato_protocol.wire.kv_events import HOST


class HostTier:
    """Keeps evicted blocks in `slots`, and evicts the least recently used first. Without slots, it is empty.

    `prefixes` follows the blocks that are in the arena or in a slot. A slot is free, *kept*, or a *copy*: its block is
    in the arena, too, so evicting it again takes no move. Copies make room first. A slot or block may be reused as soon
    as the move from it is planned, since moves are done in order. Blocks of `disk` are read into slots that no planned
    move uses, and written from slots whose save was done.
    """

    def __init__(
        self,
        slots: int = 0,
        prefixes: Prefixes | None = None,
        events: EventLog | None = None,
        disk: DiskTier | None = None,
    ) -> None:
        self.slots = slots
        self.disk = DiskTier() if disk is None else disk
        self.events = events or EventLog("", HOST)
        self._prefixes = prefixes or StoredPrefixes(self.events)
        self._slot_of: list[dict[bytes, int]] = [{} for _ in range(self._prefixes.groups)]
        self._contents: dict[int, Content] = {}
        self._free = list(range(slots))  # used from the end: sequences are evicted from their end, too
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._copies: OrderedDict[int, None] = OrderedDict()
        self._moves: list[Move] = []
        self._moving: Counter[int] = Counter()  # moves by slot that are planned or in flight
        self._saving: Counter[int] = Counter()  # of these: saves
        self._writing: Counter[int] = Counter()  # slots that are written to files
        self._unwritten: OrderedDict[int, None] = OrderedDict()  # slots to write to files, the last one first
        self._arriving: set[int] = set()  # slots that files are read into
        self._saved = self._restored = self._evicted = 0

    @property
    def pending(self) -> bool:
        """True if moves are planned that no step has taken."""
        return bool(self._moves)

    def take_moves(self) -> tuple[Move, ...]:
        """Returns the moves planned since the last call; the next step does them."""
        moves, self._moves = tuple(self._moves), []
        return moves

    def on_moved(self, moves: Iterable[Move]) -> None:
        """A step did these moves: blocks in slots may be written to files."""
        for move in moves:
            slot = move.slot
            self._moving[slot] -= 1
            if isinstance(move, Save):
                self._saving[slot] -= 1
                if self.disk.capacity and slot in self._contents and not self._saving[slot]:
                    self._unwritten[slot] = None
        self._write()

    def counts(self) -> TierCounts:
        return TierCounts(self.slots, len(self._contents), self._saved, self._restored, self._evicted)

    # ── lookups ──

    def has(self, group: int, block_hash: bytes) -> bool:
        return block_hash in self._slot_of[group]

    def longest(self, hashes: Sequence[bytes], in_arena: int) -> int:
        """Returns the blocks of a sequence's longest usable prefix; the arena has the first `in_arena` ones."""
        slots, count = self._slot_of[0], in_arena
        while count < len(hashes) and hashes[count] in slots:
            count += 1
        return self._prefixes.longest(hashes[:count])

    # ── the arena's blocks ──

    def on_stored(self, content: Content) -> None:
        """The arena has this block now; if a slot has it, the slot is a copy."""
        if not self.slots:
            return
        slot = self._slot_of[content.group].get(content.block_hash)
        if slot is None:
            self._gain(content)
        else:
            self._kept.pop(slot, None)
            self._copies[slot] = None

    def on_evicted(self, block: int, content: Content) -> None:
        """The arena evicts this block and reuses its memory: saves it."""
        if not self.slots:
            return
        slot = self._slot_of[content.group].get(content.block_hash)
        if slot is not None:
            del self._copies[slot]
        else:
            slot = self._take_slot(self._writing)
            if slot is None:
                self._drop(content)
                return
            self._slot_of[content.group][content.block_hash] = slot
            self._contents[slot] = content
            self._plan(Save(block, slot))
            self._saving[slot] += 1
            self._saved += 1
        self._kept[slot] = None

    def on_forgotten(self, content: Content) -> None:
        """The arena discards this block, whose content is in doubt."""
        if not self.slots:
            return
        slot = self._slot_of[content.group].get(content.block_hash)
        if slot is not None:
            del self._copies[slot]
            self._clear(slot)
            self._free.append(slot)
        self.disk.on_forgotten(content)
        self._lose(content)

    # ── restoring ──

    def hold(self, group: int, block_hash: bytes) -> int:
        """Protects a kept slot from eviction until `restore`. KeyError if no slot has the block."""
        slot = self._slot_of[group][block_hash]
        del self._kept[slot]
        return slot

    def restore(self, slot: int, block: int) -> Content:
        """Plans the move of a held slot to `block` of the arena, which stores it now; returns the content."""
        self._plan(Restore(slot, block))
        self._restored += 1
        return self._contents[slot]

    # ── files ──

    def reserve(self) -> int | None:
        """Takes a slot that a file may be read into now, until `on_done`; None if all are in use."""
        slot = self._take_slot(self._writing, self._moving)
        if slot is not None:
            self._arriving.add(slot)
        return slot

    def touch(self, group: int, hashes: Iterable[bytes]) -> None:
        """Marks kept blocks as used now; the last ones make room first."""
        for block_hash in hashes:
            slot = self._slot_of[group].get(block_hash)
            if slot is not None and slot in self._kept:
                self._kept.move_to_end(slot)

    def on_done(self, outcome: Outcome) -> None:
        """A read or write of a slot has ended."""
        self.disk.on_done(outcome)
        order = outcome.order
        if isinstance(order, WriteBlock):
            self._writing[order.slot] -= 1
            self._write()
            return
        self._arriving.remove(order.slot)
        content = order.content
        wanted = self.disk.has(content.group, content.block_hash)  # else it failed, or was evicted meanwhile
        if not wanted or content.block_hash in self._slot_of[content.group]:
            self._free.append(order.slot)
            return
        self._slot_of[content.group][content.block_hash] = order.slot
        self._contents[order.slot] = content
        if self.disk.is_above(content):
            self._copies[order.slot] = None
        else:
            self._kept[order.slot] = None
            self._gain(content)

    def check_integrity(self, in_arena: Sequence[dict[bytes, int]]) -> None:
        """Raises AssertionError if a slot is in two states or in none; `in_arena` are the arena's blocks by group."""
        states = sorted([*self._free, *self._kept, *self._copies, *self._arriving])
        assert states == list(range(self.slots)), "a slot is in two states or in none"
        assert self._contents.keys() == self._kept.keys() | self._copies.keys(), "a free slot has content"
        for slot, (block_hash, _, group) in self._contents.items():
            assert self._slot_of[group][block_hash] == slot, f"slot {slot} is filed under another's hash"
            assert (block_hash in in_arena[group]) == (slot in self._copies), f"slot {slot} is wrongly called a copy"
        assert sum(map(len, self._slot_of)) == len(self._contents)
        assert not any(self._saving[slot] for slot in self._unwritten), "a slot may be written before it is saved"
        self._prefixes.check_integrity()
        self.disk.check_integrity()

    # ── internals ──

    def _take_slot(self, *busy: Counter[int]) -> int | None:
        """Returns a free or reusable slot that is not in `busy`; None if there are only busy ones."""
        for place in range(len(self._free) - 1, -1, -1):
            if not any(each[self._free[place]] for each in busy):
                return self._free.pop(place)
        for slots in (self._copies, self._kept):
            slot = next((slot for slot in slots if not any(each[slot] for each in busy)), None)
            if slot is not None:
                del slots[slot]
                content = self._clear(slot)
                if slots is self._kept:
                    self._drop(content)
                return slot
        return None

    def _write(self) -> None:
        """Orders writes: beginnings of sequences first, which were evicted after their ends."""
        while self._unwritten and self.disk.writes:
            slot, _ = self._unwritten.popitem()
            if self.disk.write(slot, self._contents[slot]):
                self._writing[slot] += 1

    def _plan(self, move: Move) -> None:
        self._moves.append(move)
        self._moving[move.slot] += 1

    def _drop(self, content: Content) -> None:
        """Neither the arena nor a slot has this block any longer."""
        self._lose(content)
        self._evicted += 1

    def _gain(self, content: Content) -> None:
        self._prefixes.add(content.group, content.block_hash, content.parent)
        self.disk.on_gained(content)

    def _lose(self, content: Content) -> None:
        self._prefixes.remove(content.group, content.block_hash)
        self.disk.on_lost(content)

    def _clear(self, slot: int) -> Content:
        content = self._contents.pop(slot)
        self._unwritten.pop(slot, None)
        del self._slot_of[content.group][content.block_hash]
        return content
