"""Kubernetes' API as a `Cluster`, over the official client, whose blocking calls run in threads."""

import asyncio
import contextlib
import copy
import http.client
import json
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import urllib3
from kubernetes.client import ApiClient
from kubernetes.client.exceptions import ApiException

from legato_operator.api import kinds
from legato_operator.cluster import Object, ObjectList, Ref, ref_of
from legato_operator.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    ObjectNotFound,
    Throttled,
    Unavailable,
)
from legato_operator.kubernetes.client.throttle import Throttle, retry_after

CONNECT_TIMEOUT = 5.0  # seconds
READ_TIMEOUT = 30.0
PAGE = 500  # objects per page of a list
THREADS = 8
TRIES = 4  # of a call that an overloaded server refuses, with the pauses that it requests

_APPLY = "application/apply-patch+yaml"  # JSON is YAML
_JSON = "application/json"
_JSON_PATCH = "application/json-patch+json"
_MERGE = "application/merge-patch+json"
_STATUS = "/status"
_POSTED = ("Pod", "Event", "Lease")  # kinds whose fields are never dropped later: a POST costs the server half
_NONE_YET = "1"  # a resource version that no object has: an apply with it can only create an object
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_ERRORS = {403: Forbidden, 404: ObjectNotFound, 409: Conflict, 410: Gone, 422: Invalid}
# Errors about fields that do not fit an object's kind, which the server answers with 500 to an apply.
_UNTYPED = (
    "failed to create typed patch object",
    "failed to convert new object",
    "cannot be handled as a",
    "strict decoding error",
)
_Result = TypeVar("_Result")
Count = Callable[[str, str, str], None]  # verb, kind, outcome


@dataclass(frozen=True)
class _Call:
    """One call of the API; `verb` is its name in metrics."""

    verb: str
    method: str
    ref: Ref  # without a name for all objects of a namespace, without a namespace for all of a cluster
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    content_type: str = _JSON
    accept: str = _JSON
    part: str = ""  # of the object, such as its status

    @property
    def target(self) -> str:
        path = kinds.path(self.ref.kind, self.ref.namespace, self.ref.name) + self.part
        return f"{path}?{urllib.parse.urlencode(self.query)}" if self.query else path

    @property
    def writes(self) -> bool:
        return self.method != "GET" and "dryRun" not in self.query


class KubernetesCluster:
    """A `Cluster` over the API server. Raises Unavailable if the server cannot be reached."""

    def __init__(
        self,
        client: ApiClient,
        count: Count = lambda verb, kind, outcome: None,
        threads: int = THREADS,
        read_timeout: float = READ_TIMEOUT,
        throttle: Throttle | None = None,
    ) -> None:
        self._client = client
        self._throttle = throttle or Throttle()
        self._count = count
        self._read_timeout = read_timeout
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="kubernetes-api")
        self._may_write: Callable[[str], None] = lambda namespace: None

    def guarded(self, may_write: Callable[[str], None]) -> "KubernetesCluster":
        """Returns the same cluster, with a check of the namespace before each write is sent, which may raise."""
        guarded = copy.copy(self)
        guarded._may_write = may_write
        return guarded

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def get(self, ref: Ref) -> Object:
        return await self._call(_Call("get", "GET", ref))

    async def list(
        self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None, about: str = ""
    ) -> ObjectList:
        return await self._list(_Call("list", "GET", Ref(kind, namespace or "", "")), labels, about)

    async def list_metadata(
        self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> ObjectList:
        """Lists objects with only their metadata, which is much smaller."""
        return await self._list(_Call("list_metadata", "GET", Ref(kind, namespace or "", ""), accept=_METADATA), labels)

    async def apply(self, item: Mapping[str, Any], manager: str, force: bool = False) -> Object:
        query = {"fieldManager": manager, "force": str(force).lower(), "fieldValidation": "Strict"}
        call = _Call("apply", "PATCH", ref_of(item), query, item, _APPLY)
        try:
            return await self._call(call)
        except Invalid as contradiction:
            if not force:
                raise
            await self._overwrite(item, manager, contradiction)
        return await self._call(call)

    async def check(self, item: Mapping[str, Any], posted: bool = False) -> None:
        query = {"fieldManager": "check", "fieldValidation": "Strict", "dryRun": "All"}
        applied = _Call("check", "PATCH", ref_of(item), {**query, "force": "true"}, item, _APPLY)
        try:
            await self._call(_Call("check", "POST", _collection(item), query, item) if posted else applied)
        except Invalid:
            if posted:
                await self._call(applied)  # its error names more of the refused fields
            raise

    async def _overwrite(self, item: Mapping[str, Any], manager: str, contradiction: Invalid) -> None:
        """Sets the given fields and whole lists; if that is not enough, replaces the spec.

        Apply merges lists by keys, so it would duplicate an entry whose key somebody edited. Somebody may also have set
        a field that excludes one of the given fields.
        """
        ref, query = ref_of(item), {"fieldManager": manager}
        try:
            try:
                await self._call(_Call("merge", "PATCH", ref, query, item, _MERGE))
            except Invalid:  # also a patch: the operator has no permission to update
                spec = [{"op": "replace", "path": "/spec", "value": item["spec"]}]
                await self._call(_Call("replace", "PATCH", ref, query, spec, _JSON_PATCH))
        except (Invalid, ObjectNotFound, KeyError):
            raise contradiction from None

    async def create(self, item: Mapping[str, Any], manager: str) -> Object:
        """Creates an object, by apply unless its kind is never applied again.

        The sender of a POST owns the fields by another operation, so that a later apply could not drop them.
        """
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        if item["kind"] in _POSTED:
            return await self._call(_Call("create", "POST", _collection(item), query, item))
        fresh = {**item, "metadata": {**item["metadata"], "resourceVersion": _NONE_YET}}
        return await self._call(_Call("create", "PATCH", ref_of(item), query, fresh, _APPLY))

    async def replace(self, item: Mapping[str, Any]) -> Object:
        """Replaces an object. Raises Conflict if its `resourceVersion` is not the one in `item`, and ObjectNotFound."""
        return await self._call(_Call("replace", "PUT", ref_of(item), body=item))

    async def patch_status(
        self, ref: Ref, status: Mapping[str, Any], uid: str | None = None, first: bool = False
    ) -> Object:
        """Patches the status; `first` means that the object has none yet.

        If the API server refuses the patch, the status is read and replaced: the error does not name the refused part.
        """
        if status:
            with contextlib.suppress(Invalid):
                changes = _changes(status, uid, first)
                return await self._call(
                    _Call("status", "PATCH", ref, body=changes, content_type=_JSON_PATCH, part=_STATUS)
                )
        stored = await self.get(ref)
        if uid is not None and stored["metadata"]["uid"] != uid:
            raise Conflict(f"{ref} is not the object with uid {uid}")
        merged = {**stored.get("status", {}), **status}
        after = {key: value for key, value in merged.items() if value is not None}
        if after == stored.get("status", {}):
            return stored
        return await self._call(_Call("status", "PUT", ref, body={**stored, "status": after}, part=_STATUS))

    async def delete(self, ref: Ref, uid: str | None = None) -> None:
        await self.request_deletion(ref, uid)

    async def request_deletion(self, ref: Ref, uid: str | None = None) -> Object | None:
        """Requests a deletion. Returns the object if it is deleted later, or None if it was deleted immediately."""
        options = {"preconditions": {"uid": uid}} if uid is not None else {}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", **options}
        left = await self._call(_Call("delete", "DELETE", ref, body=body))
        return left if left["kind"] == ref.kind and _is_kept(left) else None

    async def _list(self, call: _Call, labels: Mapping[str, str] | None, about: str = "") -> ObjectList:
        query = {"limit": str(PAGE)}
        if about:
            query["fieldSelector"] = f"regarding.uid={about}"
        if labels:
            query["labelSelector"] = _selector(labels)
        kind = call.ref.kind
        types = {"apiVersion": kinds.KINDS[kind].api_version, "kind": kind}  # the items of a list lack them
        items: list[Object] = []
        while True:
            page = await self._call(replace(call, query=query))
            items += [item | types for item in page["items"] or ()]
            following = page["metadata"].get("continue")
            if not following:
                return ObjectList(tuple(items), int(page["metadata"]["resourceVersion"]))
            query["continue"] = following

    async def _call(self, call: _Call) -> Object:
        for _ in range(TRIES - 1):
            with contextlib.suppress(Throttled):
                return await self._once(call)
        return await self._once(call)

    async def _once(self, call: _Call) -> Object:
        """Runs a call once. Throttled is raised only after the pause that the server requested."""
        await self._throttle.wait_open()
        if call.writes:
            self._may_write(call.ref.namespace)
        try:
            answer = await self._in_thread(lambda: self._answer(call))
        except ClusterError as error:
            self._count(call.verb, call.ref.kind, type(error).__name__)
            if isinstance(error, Throttled):
                await self._throttle.pause(error.seconds)
            raise
        self._count(call.verb, call.ref.kind, "OK")
        return answer

    def _answer(self, call: _Call) -> Object:
        """Sends the call, and returns the parsed response. Raises ClusterError."""
        headers = {"Accept": call.accept, "Content-Type": call.content_type}
        with _mapped():
            request = self._client.param_serialize(
                call.method, call.target, header_params=headers, body=call.body, auth_settings=["BearerToken"]
            )
            response: Any = self._client.call_api(*request, _request_timeout=(CONNECT_TIMEOUT, self._read_timeout))
            if response.status == 429:
                raise Throttled(f"429: {_message(response.read())}", retry_after(response.headers))
            if response.status >= 300:
                raise _error(response.status, _message(response.read()), writing=call.method != "GET")
            answer: Object = json.loads(response.read())
            return answer

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        """Runs work in a thread. A cancelled task waits for a call that was sent: nothing is written after its end."""
        submitted = self._threads.submit(work)
        running = asyncio.wrap_future(submitted)
        running.add_done_callback(_retrieve)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not submitted.cancel():
                await asyncio.wait((running,))
            raise


def _retrieve(call: "asyncio.Future[Any]") -> None:
    """Retrieves the exception of a call, which asyncio would report if its task was cancelled twice."""
    if not call.cancelled():
        call.exception()


@contextlib.contextmanager
def _mapped() -> Iterator[None]:
    """Converts the client's errors to ClusterErrors; an incomplete answer is Unavailable."""
    try:
        yield
    except ApiException as error:
        raise _error(error.status, str(error.body or error.reason)) from None
    except (urllib3.exceptions.HTTPError, OSError, http.client.HTTPException, json.JSONDecodeError) as error:
        raise Unavailable(f"the API server cannot be asked: {error}") from None


def _collection(item: Mapping[str, Any]) -> Ref:
    return replace(ref_of(item), name="")


def _changes(status: Mapping[str, Any], uid: str | None, first: bool) -> list[dict[str, Any]]:
    """Returns a JSON patch that replaces whole fields. Only existing fields can be removed, so they are added first."""
    changes: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": uid}] if uid is not None else []
    if first:
        return [*changes, {"op": "add", "path": "/status", "value": {k: v for k, v in status.items() if v is not None}}]
    for key, value in status.items():
        changes.append({"op": "add", "path": f"/status/{key}", "value": value})
        changes += [{"op": "remove", "path": f"/status/{key}"}] if value is None else []
    return changes


def _selector(labels: Mapping[str, str]) -> str:
    """Returns labels as a selector; an empty value only requires the label to exist."""
    return ",".join(f"{key}={value}" if value else key for key, value in sorted(labels.items()))


def _is_kept(item: Object) -> bool:
    """True if an object whose deletion was requested still exists, for its finalizers or a grace period."""
    metadata = item["metadata"]
    kept = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds", 0) > 0
    return "deletionTimestamp" in metadata and bool(kept)


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def _error(status: int, message: str, writing: bool = False) -> ClusterError:
    # A write's 500 concerns only its object: a webhook failed, or Services' addresses are exhausted.
    kind = _ERRORS.get(status, Unavailable if status > 500 or (status == 500 and not writing) else ClusterError)
    if any(text in message for text in _UNTYPED):
        kind = Invalid
    if status == 422 and "metadata.uid" in message:
        kind = Conflict  # another object has this name
    return kind(f"{status}: {message}")
