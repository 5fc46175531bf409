"""Which block holds which content: chained hash ↔ block, and the evictable ones in order of use. Owns no references."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from legato_engine.kvcache.events import EventLog


class PrefixCache:
    """An index of full blocks by chained hash.

    A stored block may be in use; one that nobody uses is *evictable* and leaves, least recently used first, when its
    memory is needed. Whoever holds a block holds all its ancestors, and gives them up after it: so leaves go first, and
    the ancestors of a stored block are stored.
    """

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._blocks: dict[bytes, int] = {}
        self._hashes: dict[int, tuple[bytes, bytes | None]] = {}  # block → (its hash, its parent's)
        self._evictable: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        """Stored blocks, in use or not."""
        return len(self._blocks)

    def __iter__(self) -> Iterator[bytes]:
        """All hashes that can be found now: the content of a snapshot."""
        return iter(self._blocks)

    @property
    def evictable(self) -> int:
        return len(self._evictable)

    def stored_blocks(self) -> Iterable[int]:
        return self._hashes.keys()

    def evictable_blocks(self) -> Iterable[int]:
        return self._evictable.keys()

    def is_evictable(self, block: int) -> bool:
        return block in self._evictable

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
        """`block` (in use, full) can be found by `block_hash` from now on; the first of a sequence has no parent."""
        self._blocks[block_hash] = block
        self._hashes[block] = (block_hash, parent)
        self._events.stored(block_hash)

    def unused(self, block: int) -> None:
        """Nobody uses this stored block any more."""
        self._evictable[block] = None

    def used(self, block: int) -> None:
        """Somebody uses this evictable block again."""
        del self._evictable[block]

    def evict(self) -> int:
        """Forget the least recently used evictable block; its memory is the caller's. KeyError when there is none."""
        block, _ = self._evictable.popitem(last=False)
        block_hash, _ = self._hashes.pop(block)
        del self._blocks[block_hash]
        self._events.removed(block_hash)
        return block

    def forget(self, blocks: Sequence[int]) -> None:
        """Find the last of these blocks no more, which are stored, used and in the order of their sequence: back to the
        first one, or to one that blocks of others follow."""
        followers = Counter(parent for _, parent in self._hashes.values())
        for block in reversed(blocks):
            block_hash, parent = self._hashes[block]
            if followers[block_hash]:
                return
            followers[parent] -= 1
            del self._hashes[block], self._blocks[block_hash]
            self._events.removed(block_hash)

    def check_integrity(self) -> None:
        """Raise AssertionError where the two maps disagree or an ancestor is missing."""
        assert len(self._blocks) == len(self._hashes)
        for block, (block_hash, parent) in self._hashes.items():
            assert self._blocks[block_hash] == block, f"block {block} is stored under another's hash"
            assert parent is None or parent in self._blocks, f"block {block} has lost its parent"
        assert all(block in self._hashes for block in self._evictable)
