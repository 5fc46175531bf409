"""Objects in memory with the API server's semantics: versions, field ownership, finalizers, short-lived watches.

The store knows nothing of processes: objects of `graceful` kinds, such as pods, outlive their deletion until `remove`.
"""

import asyncio
import contextlib
import copy
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from legato_operator.cluster import Object, ObjectList, Ref, ref_of, uid_of
from legato_operator.errors import Conflict, Gone, ObjectNotFound
from legato_operator.local import fields

KEPT_EVENTS = 1024


@dataclass(frozen=True)
class WatchEvent:
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Object
    version: int


class Store:
    """An in-memory `Cluster`."""

    def __init__(
        self, timestamp: Callable[[], str], graceful: frozenset[str] = frozenset(), kept_events: int = KEPT_EVENTS
    ) -> None:
        self._timestamp = timestamp
        self._graceful = graceful
        self._objects: dict[Ref, Object] = {}
        self._owned: dict[Ref, dict[str, set[fields.Path]]] = {}
        self._events: deque[WatchEvent] = deque(maxlen=kept_events)
        self._version = 0
        self._changed = asyncio.Condition()

    async def get(self, ref: Ref) -> Object:
        return copy.deepcopy(self._stored(ref))

    async def list(
        self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None, about: str = ""
    ) -> ObjectList:
        selected = (labels or {}).items()
        items = tuple(
            copy.deepcopy(item)
            for ref, item in sorted(self._objects.items())
            if ref.kind == kind
            and namespace in (None, ref.namespace)
            and selected <= item["metadata"].get("labels", {}).items()
            and about in ("", item.get("regarding", {}).get("uid"))
        )
        return ObjectList(items, self._version)

    async def create(self, item: Mapping[str, Any], manager: str) -> Object:
        ref = ref_of(item)
        if ref in self._objects:
            raise Conflict(f"there is a {ref} already")
        return await self.apply(item, manager)

    async def apply(self, item: Mapping[str, Any], manager: str, force: bool = False) -> Object:
        ref = ref_of(item)
        before = self._objects.get(ref)
        expected = item["metadata"].get("uid")
        if expected is not None and (before is None or uid_of(before) != expected):
            raise Conflict(f"{ref} is not the object with uid {expected}")
        given = fields.leaves(item)
        owned = self._owned.get(ref, {})
        taken = self._taken(ref, before or {}, given, manager, force)
        after = copy.deepcopy(before) if before is not None else self._blank(item)
        left = owned.get(manager, set()) - given.keys() - self._fields_of_others(ref, manager)
        for path in sorted(taken | left, key=len, reverse=True):  # from the inside out
            fields.drop(after, path)
        for path, value in given.items():
            fields.write(after, path, copy.deepcopy(value))
        self._owned[ref] = {name: paths - taken for name, paths in owned.items()} | {manager: set(given)}
        return await self._settle(ref, before, after)

    async def check(self, item: Mapping[str, Any], posted: bool = False) -> None:
        """Accepts every object: kinds have no rules here."""

    async def patch_status(self, ref: Ref, status: Mapping[str, Any], uid: str | None = None) -> Object:
        before = self._stored(ref, uid)
        after = copy.deepcopy(before)
        merged = {**after.get("status", {}), **copy.deepcopy(dict(status))}
        after["status"] = {key: value for key, value in merged.items() if value is not None}
        return await self._settle(ref, before, after)

    async def delete(self, ref: Ref, uid: str | None = None) -> None:
        before = self._stored(ref, uid)
        after = copy.deepcopy(before)
        after["metadata"].setdefault("deletionTimestamp", self._timestamp())
        await self._settle(ref, before, after)

    async def remove(self, ref: Ref, uid: str) -> None:
        """Removes an object of a graceful kind, once its processes have ended. Raises ObjectNotFound and Conflict."""
        await self._forget(ref, self._stored(ref, uid))

    async def follow(self, kind: str) -> AsyncIterator[WatchEvent]:
        """Yields all objects of a kind and then their changes; after Gone, all again."""
        while True:
            listing = await self.list(kind)
            for item in listing.items:
                yield WatchEvent("ADDED", item, listing.version)
            with contextlib.suppress(Gone):
                async for event in self.watch(kind, listing.version):
                    yield event

    async def watch(self, kind: str, since: int) -> AsyncIterator[WatchEvent]:
        seen = since
        while True:
            async with self._changed:
                while self._version <= seen:
                    await self._changed.wait()
                if self._events[0].version > seen + 1:
                    raise Gone(f"events after {seen} are not kept; the oldest is {self._events[0].version}")
                news = [event for event in self._events if event.version > seen]
                seen = self._version
            for event in news:
                if event.object["kind"] == kind:
                    yield copy.deepcopy(event)

    def _stored(self, ref: Ref, uid: str | None = None) -> Object:
        item = self._objects.get(ref)
        if item is None:
            raise ObjectNotFound(f"there is no {ref}")
        if uid is not None and uid_of(item) != uid:
            raise Conflict(f"{ref} is not the object with uid {uid}")
        return item

    def _blank(self, item: Mapping[str, Any]) -> Object:
        ref = ref_of(item)
        metadata = {
            "name": ref.name,
            "namespace": ref.namespace,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": self._timestamp(),
            "generation": 0,
        }
        return {"apiVersion": item.get("apiVersion", "v1"), "kind": ref.kind, "metadata": metadata}

    def _fields_of_others(self, ref: Ref, manager: str) -> set[fields.Path]:
        return {path for name, paths in self._owned.get(ref, {}).items() if name != manager for path in paths}

    def _taken(
        self, ref: Ref, before: Mapping[str, Any], given: Mapping[fields.Path, Any], manager: str, force: bool
    ) -> set[fields.Path]:
        """Returns other managers' fields that `given` changes. Without `force`, raises Conflict if there are any."""
        taken = {
            path
            for path in self._fields_of_others(ref, manager)
            for mine, value in given.items()
            if fields.clash(before, path, mine, value)
        }
        if taken and not force:
            raise Conflict(f"{ref}: other managers own {', '.join(sorted('.'.join(path) for path in taken))}")
        return taken

    async def _settle(self, ref: Ref, before: Object | None, after: Object) -> Object:
        """Stores a changed object and notifies watchers, or removes it if it waits only for the deletion."""
        if after == before:
            return copy.deepcopy(after)
        if before is None or before.get("spec") != after.get("spec"):
            after["metadata"]["generation"] += 1
        waits = ref.kind in self._graceful or after["metadata"].get("finalizers")
        if "deletionTimestamp" in after["metadata"] and not waits:
            await self._forget(ref, after)
            return copy.deepcopy(after)
        self._objects[ref] = after
        await self._write_status("ADDED" if before is None else "MODIFIED", after)
        return copy.deepcopy(after)

    async def _forget(self, ref: Ref, item: Object) -> None:
        del self._objects[ref]
        self._owned.pop(ref, None)
        await self._write_status("DELETED", item)

    async def _write_status(self, kind: Literal["ADDED", "MODIFIED", "DELETED"], item: Object) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._events.append(WatchEvent(kind, copy.deepcopy(item), self._version))
        async with self._changed:
            self._changed.notify_all()
