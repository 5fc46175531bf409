"""A `Cluster` that reads objects from watches instead of calling the API server."""

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

from legato_operator.cluster import Object, ObjectList, Ref, labels_of, ref_of, uid_of
from legato_operator.errors import ObjectNotFound
from legato_operator.kubernetes.cache.known_objects import WatchedStore
from legato_operator.kubernetes.client.api import KubernetesCluster
from legato_protocol import names

_Result = TypeVar("_Result")
CACHED_SECONDS = 5.0  # for objects of unwatched kinds, such as the token's Secret, which every pass reads


class CachedCluster:
    """Reads from the store while it is current, else from the API server.

    For the kinds `labelled`, the store only has objects with a service's label: lists by this label need no call, but
    reads of single objects, which may be foreign, do. Returned objects are shared and must not be changed.
    """

    def __init__(
        self,
        cluster: KubernetesCluster,
        store: WatchedStore,
        labelled: tuple[str, ...],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._known = store.known
        self._labelled = labelled
        self._now = now
        self._writes = 0  # of objects of unwatched kinds
        self._read: dict[object, tuple[float, Any]] = {}  # cached objects of unwatched kinds, with the time

    async def get(self, ref: Ref) -> Object:
        if ref.kind not in self._known:
            return await self._read_cached(ref, lambda: self._cluster.get(ref))
        if ref.kind in self._labelled or not self._store.is_current(ref.kind):
            return await self._cluster.get(ref)
        item = self._known[ref.kind].get((ref.namespace, ref.name))
        if item is None:
            raise ObjectNotFound(f"there is no {ref}")
        return item

    def forget(self, ref: Ref) -> None:
        """Drops the cached copy of an object that is known to have changed."""
        self._writes += 1
        self._read.pop(ref, None)

    async def list(
        self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None, about: str = ""
    ) -> ObjectList:
        """Lists by a service's label in a namespace without a call; a watch cannot start at such a list's version."""
        if about:
            return await self._read_cached((kind, about), lambda: self._cluster.list(kind, namespace, labels, about))
        by_service = labels is not None and list(labels) == [names.LABEL_SERVICE]
        if namespace is None or labels is None or not by_service or not self._store.is_current(kind):
            return await self._cluster.list(kind, namespace, labels)
        return ObjectList(self._known[kind].of_service(namespace, labels[names.LABEL_SERVICE]), 0)

    async def create(self, item: Mapping[str, Any], manager: str) -> Object:
        return await self._write(ref_of(item), lambda: self._cluster.create(item, manager))

    async def apply(self, item: Mapping[str, Any], manager: str, force: bool = False) -> Object:
        return await self._write(ref_of(item), lambda: self._cluster.apply(item, manager, force))

    async def check(self, item: Mapping[str, Any], posted: bool = False) -> None:
        await self._cluster.check(item, posted)

    async def patch_status(self, ref: Ref, status: Mapping[str, Any], uid: str | None = None) -> Object:
        known = self._known[ref.kind].get((ref.namespace, ref.name)) if self._store.is_current(ref.kind) else None
        first = known is not None and uid_of(known) == uid and not known.get("status")
        return await self._write(ref, lambda: self._cluster.patch_status(ref, status, uid, first))

    async def delete(self, ref: Ref, uid: str | None = None) -> None:
        if ref.kind not in self._known:
            with self._unread(ref):
                await self._cluster.delete(ref, uid)
            return
        known, key = self._known[ref.kind], (ref.namespace, ref.name)
        before = known.get(key)
        with known.writing(key) as write:
            try:
                left = await self._cluster.request_deletion(ref, uid)
            except ObjectNotFound:
                if before is not None:
                    known.deleted(key, uid_of(before))
                raise
            if left is not None:
                known.wrote(left, write)
            elif before is not None and uid in (None, uid_of(before)):
                known.deleted(key, uid_of(before))

    async def _read_cached(self, key: object, read: Callable[[], Awaitable[_Result]]) -> _Result:
        """Reads with a short-lived cache, because changes by others go unnoticed."""
        self._read = {each: read for each, read in self._read.items() if self._now() - read[0] < CACHED_SECONDS}
        if key not in self._read:
            asked, writes = self._now(), self._writes
            result = await read()
            if self._writes != writes:
                return result  # it may be older than the write
            self._read[key] = asked, result
        cached: _Result = self._read[key][1]
        return cached

    @contextlib.contextmanager
    def _unread(self, ref: Ref) -> Iterator[None]:
        """Invalidates cached reads of an object at the end of a write."""
        try:
            yield
        finally:
            self._writes += 1
            self._read.pop(ref, None)

    async def _write(self, ref: Ref, call: Callable[[], Awaitable[Object]]) -> Object:
        if ref.kind not in self._known:
            with self._unread(ref):
                return await call()
        known = self._known[ref.kind]
        with known.writing((ref.namespace, ref.name)) as write:
            made = await call()
            if ref.kind not in self._labelled or names.LABEL_SERVICE in labels_of(made):
                known.wrote(made, write)
        return made
