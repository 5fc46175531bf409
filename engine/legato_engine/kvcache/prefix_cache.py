"""The prefix cache: chained hash ↔ block, and evictable blocks in order of use. It owns no references."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from legato_engine.kvcache.events import EventLog


class PrefixCache:
    """An index of full blocks by chained hash.

    A stored block that is not in use is *evictable*; the least recently used one is evicted first. A sequence that uses
    a block uses all of its ancestors, and releases them after it: so leaves are evicted first, and the ancestors of a
    stored block are stored.
    """

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._blocks: dict[bytes, int] = {}
        self._hashes: dict[int, tuple[bytes, bytes | None]] = {}  # block → (its hash, its parent's)
        self._evictable: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        """Number of stored blocks, in use or not."""
        return len(self._blocks)

    def __iter__(self) -> Iterator[bytes]:
        """All stored hashes: the content of a snapshot."""
        return iter(self._blocks)

    @property
    def evictable(self) -> int:
        return len(self._evictable)

    def stored_blocks(self) -> Iterable[int]:
        return self._hashes.keys()

    def evictable_blocks(self) -> Iterable[int]:
        return self._evictable.keys()

    def is_stored(self, block: int) -> bool:
        return block in self._hashes

    def find(self, block_hash: bytes) -> int | None:
        return self._blocks.get(block_hash)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks of the longest stored prefix of `hashes`."""
        blocks = []
        for block_hash in hashes:
            block = self._blocks.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def store(self, block: int, block_hash: bytes, parent: bytes | None) -> None:
        """Stores a full block in use under `block_hash`; the first block of a sequence has no parent."""
        self._blocks[block_hash] = block
        self._hashes[block] = (block_hash, parent)
        self._events.add_stored(block_hash)

    def mark_unused(self, block: int) -> None:
        """No sequence uses this stored block any more: it becomes evictable."""
        self._evictable[block] = None

    def mark_used(self, block: int) -> None:
        """A sequence uses this evictable block again."""
        del self._evictable[block]

    def evict(self) -> int:
        """Removes the least recently used evictable block and returns it to the caller. KeyError if there is no such
        block."""
        block, _ = self._evictable.popitem(last=False)
        block_hash, _ = self._hashes.pop(block)
        del self._blocks[block_hash]
        self._events.add_removed(block_hash)
        return block

    def forget(self, blocks: Sequence[int]) -> None:
        """Removes these blocks from the end: they are stored, used and in the order of their sequence.

        Stops at a block that other blocks follow.
        """
        followers = Counter(parent for _, parent in self._hashes.values())
        for block in reversed(blocks):
            block_hash, parent = self._hashes[block]
            if followers[block_hash]:
                return
            followers[parent] -= 1
            del self._hashes[block], self._blocks[block_hash]
            self._events.add_removed(block_hash)

    def check_integrity(self) -> None:
        """Raises AssertionError if the two maps disagree or an ancestor is missing."""
        assert len(self._blocks) == len(self._hashes)
        for block, (block_hash, parent) in self._hashes.items():
            assert self._blocks[block_hash] == block, f"block {block} is stored under another's hash"
            assert parent is None or parent in self._blocks, f"block {block} has lost its parent"
        assert all(block in self._hashes for block in self._evictable)
