"""Kubernetes' API as a `Cluster`, over the official client, whose blocking calls run in threads."""

import asyncio
import contextlib
import http.client
import json
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import urllib3
from kubernetes.client import ApiClient
from kubernetes.client.exceptions import ApiException

from legato_operator.cluster import Object, ObjectList, Ref
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
from legato_operator.kubernetes.client import kinds
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


def _uncounted(_verb: str, _kind: str, _outcome: str) -> None:
    return


class KubernetesCluster:
    """A `Cluster` over the API server. Raises Unavailable if the server cannot be reached."""

    def __init__(
        self,
        client: ApiClient,
        count: Count = _uncounted,
        threads: int = THREADS,
        read_timeout: float = READ_TIMEOUT,
        throttle: Throttle | None = None,
    ) -> None:
        self._client = client
        self._throttle = throttle or Throttle()
        self._count = count
        self._read_timeout = read_timeout
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="kubernetes-api")

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def get(self, ref: Ref) -> Object:
        return await self._call("get", ref.kind, "GET", kinds.path(ref.kind, ref.namespace, ref.name))

    async def list(
        self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None, about: str = ""
    ) -> ObjectList:
        return await self._list("list", kind, namespace, labels, about=about)

    async def list_metadata(
        self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> ObjectList:
        """Lists objects with only their metadata, which is much smaller."""
        return await self._list("list_metadata", kind, namespace, labels, _METADATA)

    async def apply(self, item: Mapping[str, Any], manager: str, force: bool = False) -> Object:
        path = _path(item)
        query = {"fieldManager": manager, "force": str(force).lower(), "fieldValidation": "Strict"}
        try:
            return await self._call("apply", item["kind"], "PATCH", path, query, item, _APPLY)
        except Invalid as contradiction:
            if not force:
                raise
            await self._overwrite(item, path, manager, contradiction)
        return await self._call("apply", item["kind"], "PATCH", path, query, item, _APPLY)

    async def check(self, item: Mapping[str, Any], posted: bool = False) -> None:
        query = {"fieldManager": "check", "fieldValidation": "Strict", "dryRun": "All"}
        kind = item["kind"]
        if posted:
            try:
                await self._call("check", kind, "POST", kinds.path(kind, item["metadata"]["namespace"]), query, item)
                return
            except Invalid:
                await self._check_applied(item, query)  # its error names more of the refused fields
                raise
        await self._check_applied(item, query)

    async def _check_applied(self, item: Mapping[str, Any], query: Mapping[str, str]) -> None:
        await self._call("check", item["kind"], "PATCH", _path(item), {**query, "force": "true"}, item, _APPLY)

    async def _overwrite(self, item: Mapping[str, Any], path: str, manager: str, contradiction: Invalid) -> None:
        """Sets the given fields and whole lists; if that is not enough, replaces the spec.

        Apply merges lists by keys, so it would duplicate an entry whose key somebody edited. Somebody may also have set
        a field that excludes one of the given fields.
        """
        query = {"fieldManager": manager}
        try:
            try:
                await self._call("merge", item["kind"], "PATCH", path, query, item, _MERGE)
            except Invalid:  # also a patch: the operator has no permission to update
                spec = [{"op": "replace", "path": "/spec", "value": item["spec"]}]
                await self._call("replace", item["kind"], "PATCH", path, query, spec, _JSON_PATCH)
        except (Invalid, ObjectNotFound, KeyError):
            raise contradiction from None

    async def create(self, item: Mapping[str, Any], manager: str) -> Object:
        """Creates an object, by apply unless its kind is never applied again.

        The sender of a POST owns the fields by another operation, so that a later apply could not drop them.
        """
        kind, metadata = item["kind"], item["metadata"]
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        if kind in _POSTED:
            return await self._call("create", kind, "POST", kinds.path(kind, metadata["namespace"]), query, item)
        fresh = {**item, "metadata": {**metadata, "resourceVersion": _NONE_YET}}
        return await self._call("create", kind, "PATCH", _path(item), query, fresh, _APPLY)

    async def replace(self, item: Mapping[str, Any]) -> Object:
        """Replaces an object. Raises Conflict if its `resourceVersion` is not the one in `item`, and ObjectNotFound."""
        path = kinds.path(item["kind"], item["metadata"]["namespace"], item["metadata"]["name"])
        return await self._call("replace", item["kind"], "PUT", path, {}, item)

    async def patch_status(
        self, ref: Ref, status: Mapping[str, Any], uid: str | None = None, first: bool = False
    ) -> Object:
        """Patches the status; `first` means that the object has none yet.

        If the API server refuses the patch, the status is read and replaced: the error does not name the refused part.
        """
        path = f"{kinds.path(ref.kind, ref.namespace, ref.name)}/status"
        if status:
            with contextlib.suppress(Invalid):
                changes = _changes(status, uid, first)
                return await self._call("status", ref.kind, "PATCH", path, {}, changes, _JSON_PATCH)
        return await self._replace_status(ref, path, status, uid)

    async def _replace_status(self, ref: Ref, path: str, status: Mapping[str, Any], uid: str | None) -> Object:
        stored = await self.get(ref)
        if uid is not None and stored["metadata"]["uid"] != uid:
            raise Conflict(f"{ref} is not the object with uid {uid}")
        merged = {**stored.get("status", {}), **status}
        after = {key: value for key, value in merged.items() if value is not None}
        if after == stored.get("status", {}):
            return stored
        return await self._call("status", ref.kind, "PUT", path, {}, {**stored, "status": after})

    async def delete(self, ref: Ref, uid: str | None = None) -> None:
        await self.request_deletion(ref, uid)

    async def request_deletion(self, ref: Ref, uid: str | None = None) -> Object | None:
        """Requests a deletion. Returns the object if it is deleted later, or None if it was deleted immediately."""
        options = {"preconditions": {"uid": uid}} if uid is not None else {}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", **options}
        left = await self._call("delete", ref.kind, "DELETE", kinds.path(ref.kind, ref.namespace, ref.name), {}, body)
        return left if left["kind"] == ref.kind and _is_kept(left) else None

    async def _list(
        self,
        verb: str,
        kind: str,
        namespace: str | None,
        labels: Mapping[str, str] | None,
        accept: str = _JSON,
        about: str = "",
    ) -> ObjectList:
        query = {"limit": str(PAGE)}
        if about:
            query["fieldSelector"] = f"regarding.uid={about}"
        if labels:
            query["labelSelector"] = _selector(labels)
        items: list[Object] = []
        while True:
            page = await self._call(verb, kind, "GET", kinds.path(kind, namespace), query, accept=accept)
            types = {"apiVersion": kinds.KINDS[kind].api_version, "kind": kind}  # absent in the items of a list
            items += [item | types for item in page["items"] or ()]
            following = page["metadata"].get("continue")
            if not following:
                return ObjectList(tuple(items), int(page["metadata"]["resourceVersion"]))
            query["continue"] = following

    async def _call(
        self,
        verb: str,
        kind: str,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
    ) -> Object:
        def run() -> Object:
            with _mapped():
                response = self._request(method, path, query or {}, body, content_type, accept)
                answer: Object = json.loads(response.read())
                return answer

        for _ in range(TRIES - 1):
            with contextlib.suppress(Throttled):
                return await self._once(verb, kind, run)
        return await self._once(verb, kind, run)

    async def _once(self, verb: str, kind: str, run: Callable[[], Object]) -> Object:
        """Runs a call once. Throttled is raised only after the pause that the server requested."""
        await self._throttle.wait_open()
        try:
            answer = await self._in_thread(run)
        except ClusterError as error:
            self._count(verb, kind, type(error).__name__)
            if isinstance(error, Throttled):
                await self._throttle.pause(error.seconds)
            raise
        self._count(verb, kind, "OK")
        return answer

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
    ) -> Any:
        """Returns the client's unread response. Raises ClusterError."""
        headers = {"Accept": accept, "Content-Type": content_type}
        target = f"{path}?{urllib.parse.urlencode(query)}" if query else path
        call = self._client.param_serialize(
            method, target, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        response: Any = self._client.call_api(*call, _request_timeout=(CONNECT_TIMEOUT, self._read_timeout))
        if response.status == 429:
            raise Throttled(f"429: {_message(response.read())}", retry_after(response.headers))
        if response.status >= 300:
            raise _error(response.status, _message(response.read()), writing=method != "GET")
        return response

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


def _path(item: Mapping[str, Any]) -> str:
    metadata = item["metadata"]
    return kinds.path(item["kind"], metadata.get("namespace", "default"), metadata["name"])


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
