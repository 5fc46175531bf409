"""A `Cluster` whose objects are known here: lists and watches tell of them, and a read of one costs no call."""

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

from legato_operator.cluster import Object, ObjectList, Ref, WatchEvent, labels_of, ref_of, uid_of
from legato_operator.errors import ObjectNotFound
from legato_operator.kubernetes.api import KubernetesCluster
from legato_operator.kubernetes.store import Store
from legato_protocol import names

_Result = TypeVar("_Result")
BELIEVED_SECONDS = 5.0  # an object of a kind that nobody watches: a service that moves reads its token in every pass


class CachedCluster:
    """Reads what the store knows; where that cannot be relied on, the API server itself is asked.

    Of those of `labelled` only objects that carry a service's label are known: lists by it need no call, but a single
    object, which may be somebody else's, does. What it returns is shared by all who ask: nobody may change it.
    """

    def __init__(
        self,
        cluster: KubernetesCluster,
        store: Store,
        labelled: tuple[str, ...],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._known = store.known
        self._labelled = labelled
        self._now = now
        self._writes = 0  # of such objects
        self._read: dict[object, tuple[float, Any]] = {}  # objects of unwatched kinds, with the time

    async def get(self, ref: Ref) -> Object:
        if ref.kind not in self._known:
            return await self._believed(ref, lambda: self._cluster.get(ref))
        if ref.kind in self._labelled or not self._store.is_current(ref.kind):
            return await self._cluster.get(ref)
        found = self._known[ref.kind].get((ref.namespace, ref.name))
        if found is None:
            raise ObjectNotFound(f"there is no {ref}")
        return found

    def forget(self, ref: Ref) -> None:
        """Drops the cached copy of an object that is known to have changed."""
        self._writes += 1
        self._read.pop(ref, None)

    async def list(
        self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None, about: str = ""
    ) -> ObjectList:
        """By a service's label in a namespace, without a call; its version is then no place to watch from."""
        if about:
            return await self._believed((kind, about), lambda: self._cluster.list(kind, namespace, labels, about))
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
        found = known.get(key)
        with known.writing(key) as write:
            try:
                left = await self._cluster.request_deletion(ref, uid)
            except ObjectNotFound:
                if found is not None:
                    known.deleted(key, uid_of(found))
                raise
            if left is not None:
                known.wrote(left, write)
            elif found is not None and uid in (None, uid_of(found)):
                known.deleted(key, uid_of(found))

    def watch(self, kind: str, since: int) -> AsyncIterator[WatchEvent]:
        return self._cluster.watch(kind, since)

    async def _believed(self, key: object, read: Callable[[], Awaitable[_Result]]) -> _Result:
        """Not for long: somebody else may write it, and nobody tells."""
        self._read = {each: read for each, read in self._read.items() if self._now() - read[0] < BELIEVED_SECONDS}
        if key not in self._read:
            asked, writes = self._now(), self._writes
            result = await read()
            if self._writes != writes:
                return result  # it may be from before the write
            self._read[key] = asked, result
        believed: _Result = self._read[key][1]
        return believed

    @contextlib.contextmanager
    def _unread(self, ref: Ref) -> Iterator[None]:
        """While it is written: what was read of it before the end of that is not believed."""
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
