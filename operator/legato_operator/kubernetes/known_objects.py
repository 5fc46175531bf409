"""What is known of the objects of one kind: what watches and lists told of them, and what was written here since."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from legato_operator.cluster import Object, ObjectList, labels_of, uid_of
from legato_operator.manifests import common
from legato_protocol import names

Key = tuple[str, str]  # namespace and name


@dataclass(frozen=True)
class Missed:
    """What no watch told of in time."""

    changed: tuple[Object, ...] = ()
    ended: int = 0

    def __len__(self) -> int:
        return len(self.changed) + self.ended


@dataclass(eq=False)
class Write:
    """One that is under way."""

    key: Key
    ended: set[str] = field(default_factory=set)  # uids of objects of that name whose end was told of meanwhile
    absent_at: int = 0  # the version of a list made meanwhile that has none of that name


@dataclass(slots=True)
class _Known:
    item: Object
    told: int = 0  # the newest version that a watch told of


class KnownObjects:
    """The newest version of each object. Belongs to one event loop.

    What was written is known at once, and no older word of it is believed: whoever reads finds his own writes. Objects
    are shared by all who ask: nobody may change one.
    """

    def __init__(self) -> None:
        self._objects: dict[Key, _Known] = {}
        self._members: dict[Key, set[Key]] = {}  # by namespace and service
        self._writes: list[Write] = []
        self._ends: dict[str, bool] = {}  # uids of what has ended untold; whether watches ever told of it
        self._absent: set[str] = set()  # of those, the ones that the last list lacked
        self._awaited: dict[Key, int] = {}  # versions that the last list showed before any watch told of them
        self._listed = 0  # the version of the last list

    def get(self, key: Key) -> Object | None:
        found = self._objects.get(key)
        return None if found is None else found.item

    def of_service(self, namespace: str, service: str) -> tuple[Object, ...]:
        """All that carry the service's label, by name."""
        return tuple(self._objects[key].item for key in sorted(self._members.get((namespace, service), ())))

    @contextlib.contextmanager
    def writing(self, key: Key) -> Iterator[Write]:
        """While a write is under way, the ends of objects of that name are noted for it."""
        write = Write(key)
        self._writes.append(write)
        try:
            yield write
        finally:
            self._writes.remove(write)

    def wrote(self, item: Object, write: Write) -> None:
        """What a write made of its object, unless that has ended since."""
        if uid_of(item) not in write.ended and _version(item) > write.absent_at:
            self._put(item)

    def deleted(self, key: Key, uid: str) -> None:
        """It was deleted here, and is gone at once. Its end is still to be told of."""
        found = self._objects.get(key)
        if found is not None and uid_of(found.item) == uid:
            self._end(key, found)

    def told(self, item: Object, gone: bool) -> None:
        """A watch told of an object, or of its end."""
        key, uid = _key(item), uid_of(item)
        if gone:
            self._told_end(key, uid)
            return
        self._put(item)
        found = self._objects.get(key)
        if found is not None and uid_of(found.item) == uid:
            found.told = max(found.told, _version(item))

    def _told_end(self, key: Key, uid: str) -> None:
        self._ends.pop(uid, None)
        for write in self._writes:
            if write.key == key:
                write.ended.add(uid)
        found = self._objects.get(key)
        if found is not None and uid_of(found.item) == uid:
            self._drop(key)

    def audited(self, listing: ObjectList) -> Missed:
        """Hold what watches told against a list of all there are; its items may lack all but their metadata.

        What they did not tell by now, though the list before this one had it, they missed. What the list lacks has
        ended, unless it was written here since.
        """
        if listing.version < self._listed:  # the cluster was set back to an earlier state
            missed = Missed(ended=len(self._objects))
            self.forget()
            self._awaited.clear()
            self._listed = listing.version
            return missed
        items = {_key(item): item for item in listing.items}
        changed = [items[key] for key, version in self._awaited.items() if key in items and self._told(key) < version]
        self._awaited = {key: _version(item) for key, item in items.items() if self._told(key) < _version(item)}
        for key, found in list(self._objects.items()):
            if key not in items and _version(found.item) <= listing.version:
                self._end(key, found)
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
        """Whatever is known: watches begin anew, and tell of all there is once more. They have the time of a list."""
        self._objects.clear()
        self._members.clear()
        self._ends.clear()
        self._absent.clear()

    def _told(self, key: Key) -> int:
        found = self._objects.get(key)
        return 0 if found is None else found.told

    def _put(self, item: Object) -> None:
        """Unless it is no news."""
        key = _key(item)
        found = self._objects.get(key)
        if uid_of(item) in self._ends or (found is not None and _version(found.item) >= _version(item)):
            return
        told = found.told if found is not None and uid_of(found.item) == uid_of(item) else 0
        self._drop(key)
        _keep_applied_fields(item["metadata"])
        self._objects[key] = _Known(item, told)
        for group in _groups(item):
            self._members.setdefault(group, set()).add(key)

    def _end(self, key: Key, found: _Known) -> None:
        self._drop(key)
        self._ends[uid_of(found.item)] = bool(found.told)

    def _drop(self, key: Key) -> None:
        found = self._objects.pop(key, None)
        for group in _groups(found.item) if found is not None else ():
            self._members[group].discard(key)
            if not self._members[group]:
                del self._members[group]

    def check_integrity(self) -> None:
        """Raises AssertionError where the index is not that of the objects."""
        groups = {(group, key) for key, known in self._objects.items() for group in _groups(known.item)}
        assert groups == {(group, key) for group, keys in self._members.items() for key in keys}


def _groups(item: Object) -> Iterable[Key]:
    service = labels_of(item).get(names.LABEL_SERVICE)
    return () if service is None else ((item["metadata"]["namespace"], service),)


def _keep_applied_fields(metadata: dict[str, Any]) -> None:
    """Keeps only the operator's `managedFields`: others are half of an object, and nobody reads them."""
    applied = common.applied(metadata)
    metadata.pop("managedFields", None)
    if applied:
        metadata["managedFields"] = applied


def _key(item: Object) -> Key:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def _version(item: Object) -> int:
    return int(item["metadata"]["resourceVersion"])
