"""A `Cluster` that is not asked again for what has not changed since: most passes change nothing.

What was read is kept until a watch tells of a change to it or it is written here. It is never patched together from
events: what has changed is read anew, so a pass reads its own writes.
"""

import collections
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from legato_operator.cluster import Cluster, Object, ObjectList, Ref, WatchEvent, labels_of, ref_of

_Labels = tuple[tuple[str, str], ...]
_Place = tuple[str, str]  # kind and namespace
_Key = TypeVar("_Key")
_Answer = TypeVar("_Answer")


class Remembered:
    """Keeps answers about the kinds of `watched`, of which `changed` must be told. Belongs to one event loop.

    Of those of `labelled` watches tell only of objects that carry a label: lists by it are kept, but no single object,
    which may be somebody else's.

    What it returns is shared by all who ask: nobody may change it. Only answers with an object in them are kept, and
    end with it.
    """

    def __init__(self, cluster: Cluster, watched: tuple[str, ...], labelled: tuple[str, ...] = ()) -> None:
        self._cluster = cluster
        self._watched = watched
        self._labelled = labelled
        self._trusted = False
        self._objects: dict[_Place, dict[str, Object]] = {}  # by name
        self._listings: dict[_Place, dict[_Labels, ObjectList]] = {}
        self._changes: collections.Counter[str] = collections.Counter()  # by kind
        self._doubts = 0  # how often trust came or went

    def trust(self, watches: bool) -> None:
        """Whether watches tell of every change. As long as they may not, nothing is kept."""
        if watches != self._trusted:
            self._doubts += 1
            self._objects.clear()
            self._listings.clear()
        self._trusted = watches

    def changed(self, item: Object) -> None:
        """A watch told of this object."""
        self._forget(ref_of(item), labels_of(item))

    async def get(self, ref: Ref) -> Object:
        if ref.kind in self._labelled:
            return await self._cluster.get(ref)
        return await self._kept(self._objects, _place(ref), ref.name, lambda: self._cluster.get(ref))

    async def list(
        self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> ObjectList:
        async def ask() -> ObjectList:
            return _slim(await self._cluster.list(kind, namespace, labels))

        if namespace is None:
            return await ask()
        key = tuple(sorted((labels or {}).items()))
        return await self._kept(self._listings, (kind, namespace), key, ask)

    async def create(self, item: Mapping[str, Any], manager: str) -> Object:
        try:
            return await self._cluster.create(item, manager)
        finally:
            self._forget(ref_of(item), labels_of(item))

    async def apply(self, item: Mapping[str, Any], manager: str, force: bool = False) -> Object:
        try:
            return await self._cluster.apply(item, manager, force)
        finally:
            self._forget(ref_of(item), labels_of(item))

    async def check(self, item: Mapping[str, Any]) -> None:
        await self._cluster.check(item)

    async def patch_status(self, ref: Ref, status: Mapping[str, Any], uid: str | None = None) -> Object:
        try:
            return await self._cluster.patch_status(ref, status, uid)
        finally:
            self._forget(ref, {})

    async def delete(self, ref: Ref, uid: str | None = None) -> None:
        try:
            await self._cluster.delete(ref, uid)
        finally:
            self._forget(ref, {})

    def watch(self, kind: str, since: int) -> AsyncIterator[WatchEvent]:
        return self._cluster.watch(kind, since)

    async def _kept(
        self,
        answers: dict[_Place, dict[_Key, _Answer]],
        place: _Place,
        key: _Key,
        ask: Callable[[], Awaitable[_Answer]],
    ) -> _Answer:
        known = answers.get(place, {}).get(key)
        if known is not None:
            return known
        kind, _ = place
        before = self._changes[kind], self._doubts
        answer = await ask()
        still = (self._changes[kind], self._doubts) == before
        if still and self._trusted and kind in self._watched and not _is_empty(answer):
            answers.setdefault(place, {})[key] = answer
        return answer

    def _forget(self, ref: Ref, labels: Mapping[str, str]) -> None:
        """Answers that held the object, or would now."""
        place = _place(ref)
        self._changes[ref.kind] += 1
        objects = self._objects.get(place, {})
        objects.pop(ref.name, None)
        listings = self._listings.get(place, {})
        for asked, listing in list(listings.items()):
            if _selects(asked, labels) or _holds(listing, ref.name):
                del listings[asked]
        if not objects:
            self._objects.pop(place, None)
        if not listings:
            self._listings.pop(place, None)


def _place(ref: Ref) -> _Place:
    return ref.kind, ref.namespace


def _is_empty(answer: object) -> bool:
    return isinstance(answer, ObjectList) and not answer.items


def _selects(asked: _Labels, labels: Mapping[str, str]) -> bool:
    return all(key in labels and value in ("", labels[key]) for key, value in asked)


def _holds(listing: ObjectList, name: str) -> bool:
    return any(item["metadata"]["name"] == name for item in listing.items)


def _slim(listing: ObjectList) -> ObjectList:
    """Without the half of each object that says who wrote which field."""
    for item in listing.items:
        item["metadata"].pop("managedFields", None)
    return listing
