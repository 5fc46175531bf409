"""Slots in the host's memory for blocks that the arena evicts: where each block is, and the moves that are planned."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from legato_engine.kvcache.events import EventLog
from legato_engine.kvcache.moves import Move, Restore, Save
from legato_engine.kvcache.reach import Prefixes, StoredPrefixes
from legato_protocol.wire.kv_events import HOST


class Content(NamedTuple):
    """A full block: its hash, its parent's (None: the first of a sequence), and its group."""

    block_hash: bytes
    parent: bytes | None
    group: int


@dataclass(frozen=True, slots=True)
class TierCounts:
    """`blocks` of `slots` are kept in the tier; the others are blocks since the start. `evicted`: no tier has them."""

    slots: int = 0
    blocks: int = 0
    saved: int = 0
    restored: int = 0
    evicted: int = 0


class HostTier:
    """Keeps evicted blocks in `slots`, least recently used first out. Without slots, it keeps nothing.

    `prefixes` follows the blocks that are in the arena or in a slot. A slot is free, *kept*, or a *copy*: its block is
    in the arena, too, so evicting it again takes no move. Copies make room first. A slot or block may be reused as soon
    as the move from it is planned, since moves are done in order.
    """

    def __init__(self, slots: int = 0, prefixes: Prefixes | None = None, events: EventLog | None = None) -> None:
        self.slots = slots
        self.events = events or EventLog("", HOST)
        self._prefixes = prefixes or StoredPrefixes(self.events)
        self._slot_of: list[dict[bytes, int]] = [{} for _ in range(self._prefixes.groups)]
        self._contents: dict[int, Content] = {}
        self._free = list(range(slots))  # from the end: sequences are evicted from their end, too
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._copies: OrderedDict[int, None] = OrderedDict()
        self._moves: list[Move] = []
        self._saved = self._restored = self._evicted = 0

    @property
    def pending(self) -> bool:
        """True if moves are planned that no step has taken."""
        return bool(self._moves)

    def take_moves(self) -> tuple[Move, ...]:
        """Returns the moves planned since the last call; the next step does them."""
        moves, self._moves = tuple(self._moves), []
        return moves

    def counts(self) -> TierCounts:
        return TierCounts(self.slots, len(self._contents), self._saved, self._restored, self._evicted)

    # ── lookups ──

    def longest(self, hashes: Sequence[bytes], in_arena: int) -> int:
        """Number of blocks of a sequence's longest usable prefix, of which the first `in_arena` are in the arena."""
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
            self._prefixes.add(content.group, content.block_hash, content.parent)
        else:
            self._kept.pop(slot, None)
            self._copies[slot] = None

    def on_evicted(self, block: int, content: Content) -> None:
        """The arena gives this block up, whose memory is reused: saves it."""
        if not self.slots:
            return
        slot = self._slot_of[content.group].get(content.block_hash)
        if slot is not None:
            del self._copies[slot]
        else:
            slot = self._free_slot()
            if slot is None:
                self._drop(content)
                return
            self._slot_of[content.group][content.block_hash] = slot
            self._contents[slot] = content
            self._moves.append(Save(block, slot))
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
        self._prefixes.remove(content.group, content.block_hash)

    # ── restoring ──

    def hold(self, group: int, block_hash: bytes) -> int:
        """Takes a kept slot out of the order of use, until `restore`. KeyError if no slot has the block."""
        slot = self._slot_of[group][block_hash]
        del self._kept[slot]
        return slot

    def restore(self, slot: int, block: int) -> Content:
        """Plans the move of a held slot to `block` of the arena, which stores it now; returns the content."""
        self._moves.append(Restore(slot, block))
        self._restored += 1
        return self._contents[slot]

    def check_integrity(self, in_arena: Sequence[dict[bytes, int]]) -> None:
        """Raises AssertionError if a slot is in two states or in none; `in_arena` are the arena's blocks by group."""
        states = sorted([*self._free, *self._kept, *self._copies])
        assert states == list(range(self.slots)), "a slot is in two states or in none"
        assert self._contents.keys() == self._kept.keys() | self._copies.keys(), "a free slot has a content"
        for slot, (block_hash, _, group) in self._contents.items():
            assert self._slot_of[group][block_hash] == slot, f"slot {slot} is filed under another's hash"
            assert (block_hash in in_arena[group]) == (slot in self._copies), f"slot {slot} is wrongly called a copy"
        assert sum(map(len, self._slot_of)) == len(self._contents)
        self._prefixes.check_integrity()

    # ── internals ──

    def _free_slot(self) -> int | None:
        """Returns a slot for another block; None if all of them are being restored."""
        if self._free:
            return self._free.pop()
        for order in (self._copies, self._kept):
            if order:
                slot, _ = order.popitem(last=False)
                content = self._clear(slot)
                if order is self._kept:
                    self._drop(content)
                return slot
        return None

    def _drop(self, content: Content) -> None:
        """Neither the arena nor a slot has this block any more."""
        self._prefixes.remove(content.group, content.block_hash)
        self._evicted += 1

    def _clear(self, slot: int) -> Content:
        content = self._contents.pop(slot)
        del self._slot_of[content.group][content.block_hash]
        return content
