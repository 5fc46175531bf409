"""Tracks usable prefixes, which a sequence can continue from: all of their blocks are in the first group, and the last
ones in the groups of each window. Pure.

A prefix is named by the hash of its last block. For each window, the number of consecutive blocks up to a hash is kept,
at most as many as the window needs, so that a change of one block updates only the hashes that follow it within that
distance.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from legato_engine.kvcache.events import EventLog


class Prefixes(Protocol):
    """Follows the stored blocks of all groups, and logs the prefixes that become usable or unusable."""

    groups: int

    def usable(self, stored: Mapping[bytes, int]) -> Iterable[bytes]:
        """Hashes of all usable prefixes; `stored` are the first group's blocks."""

    def longest(self, hashes: Sequence[bytes]) -> int:
        """Number of blocks of a sequence's longest usable prefix; the first group has the blocks of all `hashes`."""

    def add(self, group: int, block_hash: bytes, parent: bytes | None) -> None:
        """A group stores a block of this hash; the parent of a sequence's first block is None."""

    def remove(self, group: int, block_hash: bytes) -> None:
        """A group no longer has a block of this hash."""

    def check_integrity(self) -> None:
        """Raises AssertionError if counts of consecutive blocks or usable prefixes are wrong."""


def follow_prefixes(windows: tuple[int, ...], block_size: int, events: EventLog) -> Prefixes:
    """`windows` has a window for each group after the first; blocks hold `block_size` positions."""
    return WindowedPrefixes(windows, block_size, events) if windows else StoredPrefixes(events)


class StoredPrefixes:
    """Implements `Prefixes` for one group: each stored block ends a usable prefix."""

    groups = 1

    def __init__(self, events: EventLog) -> None:
        self._events = events

    def usable(self, stored: Mapping[bytes, int]) -> Iterable[bytes]:
        return stored

    def longest(self, hashes: Sequence[bytes]) -> int:
        return len(hashes)

    def add(self, group: int, block_hash: bytes, parent: bytes | None) -> None:
        self._events.add_stored(block_hash)

    def remove(self, group: int, block_hash: bytes) -> None:
        self._events.add_removed(block_hash)

    def check_integrity(self) -> None:
        pass


class WindowedPrefixes:
    """Implements `Prefixes`. A window has the block of a hash if all of the window's groups have it."""

    def __init__(self, windows: Sequence[int], block_size: int, events: EventLog) -> None:
        self.groups = 1 + len(windows)
        self._events = events
        self._window_of = {1 + index: window for index, window in enumerate(windows)}
        self._groups_of = Counter(windows)
        # Blocks before a sequence's next position that each window reaches.
        self._needed = {window: -(-(window - 1) // block_size) for window in windows}
        self._first: set[bytes] = set()  # hashes of the first group
        self._stored: dict[int, Counter[bytes]] = {window: Counter() for window in self._groups_of}
        self._runs: dict[int, dict[bytes, int]] = {window: {} for window in self._groups_of}
        self._parents: dict[bytes, bytes | None] = {}  # of each hash that a group has
        self._children: defaultdict[bytes, set[bytes]] = defaultdict(set)
        self._users: Counter[bytes] = Counter()  # groups that have a block of this hash
        self._usable: dict[bytes, None] = {}

    def usable(self, stored: Mapping[bytes, int]) -> Iterable[bytes]:
        return self._usable

    def longest(self, hashes: Sequence[bytes]) -> int:
        return next((count for count in range(len(hashes), 0, -1) if hashes[count - 1] in self._usable), 0)

    def add(self, group: int, block_hash: bytes, parent: bytes | None) -> None:
        self._users[block_hash] += 1
        if self._users[block_hash] == 1:
            self._parents[block_hash] = parent
            if parent is not None:
                self._children[parent].add(block_hash)
        if not group:
            self._first.add(block_hash)
            self._update(block_hash)
            return
        window = self._window_of[group]
        self._stored[window][block_hash] += 1
        if self._stored[window][block_hash] == self._groups_of[window]:
            self._update_runs(window, block_hash)

    def remove(self, group: int, block_hash: bytes) -> None:
        if not group:
            self._first.remove(block_hash)
            self._update(block_hash)
        else:
            window = self._window_of[group]
            complete = self._stored[window][block_hash] == self._groups_of[window]
            self._stored[window][block_hash] -= 1
            if complete:
                self._update_runs(window, block_hash)
            if not self._stored[window][block_hash]:
                del self._stored[window][block_hash]
        self._users[block_hash] -= 1
        if not self._users[block_hash]:
            self._forget(block_hash)

    def check_integrity(self) -> None:
        for window, runs in self._runs.items():
            complete = {h for h, count in self._stored[window].items() if count == self._groups_of[window]}
            assert runs.keys() == complete, "a window's hashes differ from its blocks"
            assert all(runs[h] == self._run(window, h) for h in runs), "consecutive blocks are miscounted"
        assert set(self._usable) == {h for h in self._parents if self._is_usable(h)}, "usable prefixes are wrong"
        assert self._parents.keys() == self._users.keys(), "a hash without blocks is kept"

    def _run(self, window: int, block_hash: bytes) -> int:
        """Number of consecutive blocks that end with this one, at most as many as the window needs."""
        parent, most = self._parents[block_hash], self._needed[window]
        return most if parent is None else min(most, self._runs[window].get(parent, 0) + 1)

    def _update_runs(self, window: int, block_hash: bytes) -> None:
        """Updates the run of a hash whose block a window has gained or lost, and the runs that continue it."""
        runs, complete, changed = self._runs[window], self._groups_of[window], [block_hash]
        while changed:
            each = changed.pop()
            run = self._run(window, each) if self._stored[window][each] == complete else None
            if runs.get(each) == run:
                continue
            if run is None:
                del runs[each]
            else:
                runs[each] = run
            self._update(each)
            changed += [child for child in self._children.get(each, ()) if child in runs]

    def _is_usable(self, block_hash: bytes) -> bool:
        needed = self._needed
        return block_hash in self._first and all(
            runs.get(block_hash, -1) >= needed[window] for window, runs in self._runs.items()
        )

    def _update(self, block_hash: bytes) -> None:
        usable = self._is_usable(block_hash)
        if usable and block_hash not in self._usable:
            self._usable[block_hash] = None
            self._events.add_stored(block_hash)
        elif not usable and block_hash in self._usable:
            del self._usable[block_hash]
            self._events.add_removed(block_hash)

    def _forget(self, block_hash: bytes) -> None:
        del self._users[block_hash]
        parent = self._parents.pop(block_hash)
        if parent is not None:
            self._children[parent].discard(block_hash)
            if not self._children[parent]:
                del self._children[parent]
