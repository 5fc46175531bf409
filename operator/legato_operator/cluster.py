"""The operator's interface to a cluster: seven calls with the semantics of Kubernetes' API.

`local` implements it on one machine; the conformance suite checks every implementation.
"""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Object = dict[str, Any]  # in the API's format: apiVersion, kind, metadata, spec, status


@dataclass(frozen=True, order=True)
class Ref:
    """The identity of an object."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True)
class ObjectList:
    """Objects as of `version`: a watch from this version misses nothing."""

    items: tuple[Object, ...]
    version: int


class Cluster(Protocol):
    """Objects are passed by value: changing a returned one changes nothing in the cluster."""

    async def get(self, ref: Ref) -> Object:
        """Returns the object. Raises ObjectNotFound."""
        ...

    async def list(
        self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None, about: str = ""
    ) -> ObjectList:
        """Lists the objects of a kind with these labels; `about` selects Events about the object with this uid.

        Raises ObjectNotFound if the cluster lacks the kind.
        """
        ...

    async def create(self, item: Mapping[str, Any], manager: str) -> Object:
        """Applies a new object. Raises Conflict if an object of that name exists, whoever owns it."""
        ...

    async def apply(self, item: Mapping[str, Any], manager: str, force: bool = False) -> Object:
        """Server-side apply: creates the object, or sets the given fields and drops others that `manager` set earlier.

        Raises Conflict for a field that another manager owns with another value, unless `force` takes it over, and for
        a `metadata.uid` in `item` of another object. An apply that changes nothing writes nothing.
        """
        ...

    async def check(self, item: Mapping[str, Any], posted: bool = False) -> None:
        """Raises Invalid if the API server refuses an apply of the object, or, if `posted`, a POST. Writes nothing.

        An apply refuses lists with duplicate keys, even if the object's kind allows them.
        """
        ...

    async def patch_status(self, ref: Ref, status: Mapping[str, Any], uid: str | None = None) -> Object:
        """Replaces the given top-level fields of the status; null removes one. Raises ObjectNotFound and Conflict."""
        ...

    async def delete(self, ref: Ref, uid: str | None = None) -> None:
        """Requests the deletion of an object, which may wait for its finalizers or a pod's processes.

        Raises ObjectNotFound, or Conflict if `uid` is not the object's.
        """
        ...


def ref_of(item: Mapping[str, Any]) -> Ref:
    """Returns the identity of an object."""
    metadata = item["metadata"]
    return Ref(item["kind"], metadata.get("namespace", "default"), metadata["name"])


def seconds_of(timestamp: str) -> float:
    """Returns an API timestamp in seconds since the epoch. Raises ValueError."""
    return datetime.datetime.fromisoformat(timestamp).timestamp()


def uid_of(item: Mapping[str, Any]) -> str:
    """Returns an object's uid."""
    return str(item["metadata"]["uid"])


def labels_of(item: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns an object's labels."""
    labels: Mapping[str, str] = item["metadata"].get("labels", {})
    return labels


def is_leaving(item: Mapping[str, Any]) -> bool:
    """True if the object's deletion was requested."""
    return "deletionTimestamp" in item["metadata"]
