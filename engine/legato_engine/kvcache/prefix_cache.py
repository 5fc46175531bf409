"""The prefix cache: chained hash ↔ block, and evictable blocks in order of use. It owns no references."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from legato_engine.kvcache.host_tier import HostTier
from legato_engine.kvcache.moves import Content
from legato_engine.kvcache.reach import Prefixes


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """A usable prefix of `count` blocks, the first of which are `blocks` of the arena; slots have the others."""

    blocks: list[int]
    count: int


class PrefixCache:
    """An index of full blocks by group and chained hash.

    A stored block that is not in use is *evictable*; the least recently used one is evicted first. A sequence that uses
    a block of the first group uses all of its ancestors, and releases them after it: so leaves are evicted first, and
    the ancestors of a stored block are stored. Blocks of windows have no such order. `host` keeps evicted blocks.
    """

    def __init__(self, prefixes: Prefixes, host: HostTier) -> None:
        self._prefixes = prefixes
        self._host = host
        self._blocks: list[dict[bytes, int]] = [{} for _ in range(prefixes.groups)]
        self._hashes: dict[int, Content] = {}
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._evicted: OrderedDict[bytes, None] = OrderedDict()  # latest evicted blocks of the first group
        self._most = 0  # blocks that were stored at one time, and evicted ones that are remembered

    def __len__(self) -> int:
        """Number of stored blocks, in use or not."""
        return len(self._hashes)

    def __iter__(self) -> Iterator[bytes]:
        """Hashes of all usable prefixes: the content of a snapshot."""
        return iter(self._prefixes.usable(self._blocks[0]))

    @property
    def evictable(self) -> int:
        return len(self._evictable)

    def stored_blocks(self) -> Iterable[int]:
        return self._hashes.keys()

    def evictable_blocks(self) -> Iterable[int]:
        return self._evictable.keys()

    def is_stored(self, block: int) -> bool:
        return block in self._hashes

    def find(self, block_hash: bytes, group: int = 0) -> int | None:
        return self._blocks[group].get(block_hash)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """The first group's blocks of the longest usable prefix of `hashes`. Windows have their blocks, too."""
        blocks = self._leading(hashes)
        del blocks[self._prefixes.longest(hashes[: len(blocks)]) :]
        return blocks

    def match_all(self, hashes: Sequence[bytes]) -> CachedPrefix:
        """The longest usable prefix of `hashes` in arena and slots."""
        if not self._host.slots:
            blocks = self.match(hashes)
            return CachedPrefix(blocks, len(blocks))
        blocks = self._leading(hashes)
        count = self._host.longest(hashes, len(blocks))
        return CachedPrefix(blocks[:count], count)

    def path(self, block: int) -> list[int]:
        """The first group's blocks of the stored prefix that ends with this one."""
        blocks, parent = [block], self._hashes[block].parent
        while parent is not None:
            blocks.append(self._blocks[0][parent])
            parent = self._hashes[blocks[-1]].parent
        return blocks[::-1]

    def store(self, block: int, block_hash: bytes, parent: bytes | None, group: int = 0) -> None:
        """Stores a full block in use under `block_hash`; the first block of a sequence has no parent."""
        self._blocks[group][block_hash] = block
        self._hashes[block] = content = Content(block_hash, parent, group)
        self._most = max(self._most, len(self._hashes))
        if not group:
            self._evicted.pop(block_hash, None)
        self._prefixes.add(group, block_hash, parent)
        self._host.on_stored(content)

    def mark_unused(self, block: int) -> None:
        """No sequence uses this stored block any more: it becomes evictable."""
        self._evictable[block] = None

    def mark_used(self, block: int) -> None:
        """A sequence uses this evictable block again."""
        del self._evictable[block]

    def was_evicted(self, block_hash: bytes) -> bool:
        """True if this block of the first group was evicted lately: a cache of twice the size would have it."""
        return block_hash in self._evicted

    def evict(self) -> int:
        """Removes the least recently used evictable block and returns it to the caller; the host may keep its content.
        KeyError if there is no such block."""
        block, _ = self._evictable.popitem(last=False)
        content = self._remove(block)
        self._host.on_evicted(block, content)
        if not content.group:
            self._evicted[content.block_hash] = None
            if len(self._evicted) > self._most:
                self._evicted.popitem(last=False)
        return block

    def forget(self, blocks: Sequence[int]) -> list[int]:
        """Removes these blocks of the first group from the end: they are stored, used and in their sequence's order.

        Stops at a block that other blocks follow. Returns the blocks of windows that were removed with them.
        """
        followers = Counter(parent for _, parent, group in self._hashes.values() if not group)
        of_windows = list[int]()
        for block in reversed(blocks):
            block_hash, parent, _ = self._hashes[block]
            if followers[block_hash]:
                break
            followers[parent] -= 1
            self._host.on_forgotten(self._remove(block))
            of_windows += [stored[block_hash] for stored in self._blocks[1:] if block_hash in stored]
        for block in of_windows:
            self._evictable.pop(block, None)
            self._host.on_forgotten(self._remove(block))
        return of_windows

    def check_integrity(self) -> None:
        """Raises AssertionError if the two maps disagree or an ancestor is missing."""
        assert sum(map(len, self._blocks)) == len(self._hashes)
        for block, (block_hash, parent, group) in self._hashes.items():
            assert self._blocks[group][block_hash] == block, f"block {block} is stored under another's hash"
            assert group or parent is None or parent in self._blocks[0], f"block {block} has lost its parent"
        assert all(block in self._hashes for block in self._evictable)
        assert not self._evicted.keys() & self._blocks[0].keys()
        self._prefixes.check_integrity()
        self._host.check_integrity(self._blocks)

    def _leading(self, hashes: Sequence[bytes]) -> list[int]:
        """The first group's blocks of leading `hashes`."""
        blocks, stored = [], self._blocks[0]
        for block_hash in hashes:
            block = stored.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _remove(self, block: int) -> Content:
        content = self._hashes.pop(block)
        del self._blocks[content.group][content.block_hash]
        self._prefixes.remove(content.group, content.block_hash)
        return content
