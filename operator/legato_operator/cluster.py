"""What the operator needs of a cluster, and no more: eight calls with the semantics of Kubernetes' API.

`local` implements it on one machine; the conformance suite says what every implementation must do.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Object = dict[str, Any]  # as the API spells it: apiVersion, kind, metadata, spec, status


@dataclass(frozen=True, order=True)
class Ref:
    """Names one object."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True)
class ObjectList:
    """Objects as of `version`: a watch from there misses nothing."""

    items: tuple[Object, ...]
    version: int


@dataclass(frozen=True)
class WatchEvent:
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Object
    version: int


class Cluster(Protocol):
    """Objects come and go by value: changing one that was returned changes nothing in the cluster."""

    async def get(self, ref: Ref) -> Object:
        """The object. Raises ObjectNotFound."""
        ...

    async def list(
        self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None, about: str = ""
    ) -> ObjectList:
        """All objects of a kind that carry these labels; `about` selects Events about the object with this uid.

        Raises ObjectNotFound where the cluster has no such kind.
        """
        ...

    async def create(self, item: Mapping[str, Any], manager: str) -> Object:
        """Apply an object that is not there yet. Raises Conflict where there is one of that name, whosever it is."""
        ...

    async def apply(self, item: Mapping[str, Any], manager: str, force: bool = False) -> Object:
        """Server-side apply: create it, or set exactly the fields given and drop those that `manager` gave earlier.

        A field that another manager holds with another value raises Conflict, unless `force` takes it over. A
        `metadata.uid` in `item` must be the object's, else Conflict. An apply that changes nothing writes nothing.
        """
        ...

    async def check(self, item: Mapping[str, Any], posted: bool = False) -> None:
        """Raises Invalid if the API server refuses an apply of the object, or, if `posted`, a POST. Writes nothing.

        An apply refuses lists with a key twice, even if the object's kind allows them.
        """
        ...

    async def patch_status(self, ref: Ref, status: Mapping[str, Any], uid: str | None = None) -> Object:
        """Replace the given top-level fields of the status; null removes one. Raises ObjectNotFound and Conflict."""
        ...

    async def delete(self, ref: Ref, uid: str | None = None) -> None:
        """Ask for its end: it goes at once, or when its finalizers are gone (a pod: when its processes are).

        Raises ObjectNotFound, or Conflict when `uid` is not the object's.
        """
        ...

    def watch(self, kind: str, since: int) -> AsyncIterator[WatchEvent]:
        """Events of a kind after version `since`, in order, without end. Raises Gone when some are not kept."""
        ...


def ref_of(item: Mapping[str, Any]) -> Ref:
    """The name of an object."""
    metadata = item["metadata"]
    return Ref(item["kind"], metadata.get("namespace", "default"), metadata["name"])


def uid_of(item: Mapping[str, Any]) -> str:
    """Which object of that name it is."""
    return str(item["metadata"]["uid"])


def labels_of(item: Mapping[str, Any]) -> Mapping[str, str]:
    """An object's labels."""
    labels: Mapping[str, str] = item["metadata"].get("labels", {})
    return labels


def is_leaving(item: Mapping[str, Any]) -> bool:
    """Whether its deletion was asked for."""
    return "deletionTimestamp" in item["metadata"]
