"""The order in which blocks of sequences are evicted, so that each sequence loses its last blocks first. Pure."""

from collections import Counter, OrderedDict
from collections.abc import Mapping

from legato_engine.kvcache.moves import Content

Key = tuple[int, bytes]  # group and hash


class ChainOrder:
    """Evicts about the least recently used *end* first: a block that no other block continues."""

    def __init__(self) -> None:
        self._used: dict[Key, float] = {}  # time of the last use of each block
        self._ends: OrderedDict[Key, None] = OrderedDict()
        self._continued: Counter[Key] = Counter()  # present and expected blocks that continue a block

    def first(self) -> Key | None:
        """The block to evict next; None if expected blocks continue all that are left."""
        return next(iter(self._ends), None)

    def expect(self, content: Content) -> None:
        """The block is added later, or `forget` is called: until then, its parent is not evicted."""
        if content.parent is not None:
            parent = content.group, content.parent
            self._continued[parent] += 1
            self._ends.pop(parent, None)

    def add(self, content: Content, now: float) -> None:
        """An expected block is present."""
        key = content.group, content.block_hash
        self._used[key] = now
        if not self._continued[key]:
            self._ends[key] = None

    def use(self, key: Key, now: float) -> None:
        """A present block is used."""
        self._used[key] = now
        if key in self._ends:
            self._ends.move_to_end(key)

    def remove(self, content: Content) -> None:
        """A present block is removed."""
        key = content.group, content.block_hash
        del self._used[key]
        self._ends.pop(key, None)
        self.forget(content)

    def forget(self, content: Content) -> None:
        """An expected block is not added. Its parent may be an end again: the next to evict, unless it was used since
        that one."""
        if content.parent is None:
            return
        parent = content.group, content.parent
        self._continued[parent] -= 1
        if self._continued[parent]:
            return
        del self._continued[parent]
        if parent in self._used:
            first = self.first() or parent
            self._ends[parent] = None
            self._ends.move_to_end(parent, last=self._used[parent] > self._used[first])

    def check_integrity(self, present: Mapping[Key, Content], expected: int) -> None:
        """Raises AssertionError if other blocks are present, more are expected, or the ends are wrong."""
        assert self._used.keys() == present.keys(), "blocks without a place in the order of eviction"
        assert self._ends.keys() == {key for key in present if not self._continued[key]}, "an end is continued"
        continuing = sum(content.parent is not None for content in present.values())
        assert 0 <= self._continued.total() - continuing <= expected, "a block is continued by none"
