"""Caches of the watched kinds, fed by watches, lists and the operator's own writes.

kopf's indexes follow its watches only: they lack the operator's own writes, which the next pass must see, and changes
that a dead watch missed.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from legato_operator.cluster import Object, ObjectList, labels_of, uid_of
from legato_operator.manifests import common
from legato_protocol import names

Key = tuple[str, str]  # namespace and name


@dataclass(frozen=True)
class Missed:
    """Changes that no watch reported in time."""

    changed: tuple[Object, ...] = ()
    ended: int = 0

    def __len__(self) -> int:
        return len(self.changed) + self.ended


@dataclass(eq=False)
class Write:
    """A write in progress."""

    key: Key
    ended: set[str] = field(default_factory=set)  # uids of objects of this name whose end was reported meanwhile
    absent_at: int = 0  # the version of a list made meanwhile without an object of this name


@dataclass(slots=True)
class _Known:
    item: Object
    reported: int = 0  # the newest version that a watch reported


class KnownObjects:
    """The newest version of each object. Belongs to one event loop.

    Writes are visible immediately, and older reports are ignored, so that readers see their own writes. Objects are
    shared and must not be changed.
    """

    def __init__(self) -> None:
        self._objects: dict[Key, _Known] = {}
        self._members: dict[Key, set[Key]] = {}  # by namespace and service
        self._writes: list[Write] = []
        self._ends: dict[str, bool] = {}  # uids of ends that watches must report; True if a watch reported the object
        self._absent: set[str] = set()  # the uids in `_ends` that the last list lacked
        self._awaited: dict[Key, int] = {}  # versions in the last list that no watch had reported
        self._listed = 0  # the version of the last list

    def get(self, key: Key) -> Object | None:
        known = self._objects.get(key)
        return None if known is None else known.item

    def of_service(self, namespace: str, service: str) -> tuple[Object, ...]:
        """Returns all objects with the service's label, ordered by name."""
        return tuple(self._objects[key].item for key in sorted(self._members.get((namespace, service), ())))

    @contextlib.contextmanager
    def writing(self, key: Key) -> Iterator[Write]:
        """Tracks a write, for which the ends of objects of this name are recorded."""
        write = Write(key)
        self._writes.append(write)
        try:
            yield write
        finally:
            self._writes.remove(write)

    def wrote(self, item: Object, write: Write) -> None:
        """Stores the result of a write, unless its object has ended since."""
        if uid_of(item) not in write.ended and _version(item) > write.absent_at:
            self._put(item)

    def deleted(self, key: Key, uid: str) -> None:
        """Removes an object that the operator deleted immediately. A watch must still report its end."""
        known = self._objects.get(key)
        if known is not None and uid_of(known.item) == uid:
            self._end(key, known)

    def report(self, item: Object, gone: bool) -> None:
        """Stores an object that a watch reported, or removes it if it is gone."""
        key, uid = _key(item), uid_of(item)
        if gone:
            self._report_end(key, uid)
            return
        self._put(item)
        known = self._objects.get(key)
        if known is not None and uid_of(known.item) == uid:
            known.reported = max(known.reported, _version(item))

    def _report_end(self, key: Key, uid: str) -> None:
        self._ends.pop(uid, None)
        for write in self._writes:
            if write.key == key:
                write.ended.add(uid)
        known = self._objects.get(key)
        if known is not None and uid_of(known.item) == uid:
            self._drop(key)

    def audit(self, listing: ObjectList) -> Missed:
        """Compares the reports of watches with a list of all objects, which may only have their metadata.

        Watches have missed a change that the list before this one had and that they have not reported by now. Objects
        that the list lacks have ended, unless the operator wrote them since.
        """
        if listing.version < self._listed:  # the cluster was set back to an earlier state
            missed = Missed(ended=len(self._objects))
            self.forget()
            self._awaited.clear()
            self._listed = listing.version
            return missed
        items = {_key(item): item for item in listing.items}
        late = (key for key, version in self._awaited.items() if key in items and self._reported(key) < version)
        changed = [items[key] for key in late]
        self._awaited = {key: _version(item) for key, item in items.items() if self._reported(key) < _version(item)}
        for key, known in list(self._objects.items()):
            if key not in items and _version(known.item) <= listing.version:
                self._end(key, known)
        for write in self._writes:
            if write.key not in items:
                write.absent_at = listing.version
        self._listed = listing.version
        return Missed(tuple(changed), self._missed_ends({uid_of(item) for item in items.values()}))

    def _missed_ends(self, listed: set[str]) -> int:
        absent = {uid for uid in self._ends if uid not in listed}
        missed = absent & self._absent
        self._absent = absent - missed
        return sum(self._ends.pop(uid) for uid in missed)

    def forget(self) -> None:
        """Clears the cache when watches restart, which report all objects again."""
        self._objects.clear()
        self._members.clear()
        self._ends.clear()
        self._absent.clear()

    def _reported(self, key: Key) -> int:
        known = self._objects.get(key)
        return 0 if known is None else known.reported

    def _put(self, item: Object) -> None:
        """Stores an object unless a newer version is known."""
        key = _key(item)
        known = self._objects.get(key)
        if uid_of(item) in self._ends or (known is not None and _version(known.item) >= _version(item)):
            return
        reported = known.reported if known is not None and uid_of(known.item) == uid_of(item) else 0
        self._drop(key)
        _keep_applied_fields(item["metadata"])
        self._objects[key] = _Known(item, reported)
        for group in _groups(item):
            self._members.setdefault(group, set()).add(key)

    def _end(self, key: Key, known: _Known) -> None:
        self._drop(key)
        self._ends[uid_of(known.item)] = bool(known.reported)

    def _drop(self, key: Key) -> None:
        known = self._objects.pop(key, None)
        for group in _groups(known.item) if known is not None else ():
            self._members[group].discard(key)
            if not self._members[group]:
                del self._members[group]

    def check_integrity(self) -> None:
        """Raises AssertionError if the index does not match the objects."""
        groups = {(group, key) for key, known in self._objects.items() for group in _groups(known.item)}
        assert groups == {(group, key) for group, keys in self._members.items() for key in keys}


class WatchedStore:
    """The watched kinds, used only while audits find that watches report every change. Belongs to one event loop."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.known: Mapping[str, KnownObjects] = {kind: KnownObjects() for kind in kinds}
        self.trusted = False  # True if watches report every change

    def report(self, item: Object, gone: bool) -> None:
        """Stores an object that a watch reported, or removes it if it is gone."""
        self.known[item["kind"]].report(item, gone)

    def audit(self, kind: str, listing: ObjectList) -> Missed:
        """Returns the changes that watches missed, given a list of all objects of a kind."""
        return self.known[kind].audit(listing)

    def trust(self, watches: bool) -> None:
        """Sets if watches report every change, according to an audit."""
        self.trusted = watches

    def forget(self) -> None:
        """Clears the caches, because watches restart."""
        self.trusted = False
        for known in self.known.values():
            known.forget()

    def is_current(self, kind: str) -> bool:
        """True if the cache of a kind is current, except for events in transit."""
        return self.trusted and kind in self.known


def _groups(item: Object) -> Iterable[Key]:
    service = labels_of(item).get(names.LABEL_SERVICE)
    return () if service is None else ((item["metadata"]["namespace"], service),)


def _keep_applied_fields(metadata: dict[str, Any]) -> None:
    """Keeps only the operator's `managedFields`: the others are half of an object, and unused."""
    applied = common.applied(metadata)
    metadata.pop("managedFields", None)
    if applied:
        metadata["managedFields"] = applied


def _key(item: Object) -> Key:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def _version(item: Object) -> int:
    return int(item["metadata"]["resourceVersion"])
