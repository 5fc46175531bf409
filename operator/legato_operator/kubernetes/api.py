"""Kubernetes' API as a `Cluster`, over the official client. Its calls block, so each runs in a thread."""

import asyncio
import json
import urllib.parse
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import urllib3
from kubernetes.client import ApiClient
from kubernetes.client.exceptions import ApiException

from legato_operator.cluster import Event, Listing, Object, Ref
from legato_operator.errors import ClusterError, Conflict, Gone, NotFound, Unavailable
from legato_operator.kubernetes import kinds

CONNECT_TIMEOUT = 5.0  # seconds
READ_TIMEOUT = 30.0
WATCH_SECONDS = 240  # the server ends a watch after that; a connection that died unheard ends by READ_TIMEOUT more
PAGE = 500  # objects in one answer to a list
THREADS = 8

_APPLY = "application/apply-patch+yaml"  # JSON is YAML
_ERRORS = {404: NotFound, 409: Conflict, 410: Gone, 429: Unavailable}
_Result = TypeVar("_Result")


class KubernetesCluster:
    """A `Cluster` in which objects outlive the operator. Raises Unavailable when the server cannot be asked."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kubernetes-api")

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def get(self, ref: Ref) -> Object:
        return await self._call("GET", kinds.path(ref.kind, ref.namespace, ref.name))

    async def list(self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None) -> Listing:
        query = {"limit": str(PAGE)}
        if labels:
            query["labelSelector"] = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        items: list[Object] = []
        while True:
            page = await self._call("GET", kinds.path(kind, namespace), query)
            spelled = {"apiVersion": kinds.KINDS[kind].api_version, "kind": kind}  # which items of a list lack
            items += [spelled | item for item in page["items"]]
            following = page["metadata"].get("continue")
            if not following:
                return Listing(tuple(items), int(page["metadata"]["resourceVersion"]))
            query["continue"] = following

    async def apply(self, item: Mapping[str, Any], manager: str, force: bool = False) -> Object:
        metadata = item["metadata"]
        path = kinds.path(item["kind"], metadata.get("namespace", "default"), metadata["name"])
        query = {"fieldManager": manager, "force": str(force).lower(), "fieldValidation": "Strict"}
        return await self._call("PATCH", path, query, item, _APPLY)

    async def patch_status(self, ref: Ref, status: Mapping[str, Any], uid: str | None = None) -> Object:
        stored = await self.get(ref)
        if uid is not None and stored["metadata"]["uid"] != uid:
            raise Conflict(f"{ref} is not the object with uid {uid}")
        merged = {**stored.get("status", {}), **status}
        after = {key: value for key, value in merged.items() if value is not None}
        if after == stored.get("status", {}):
            return stored
        path = f"{kinds.path(ref.kind, ref.namespace, ref.name)}/status"
        return await self._call("PUT", path, {}, {**stored, "status": after})

    async def delete(self, ref: Ref, uid: str | None = None) -> None:
        options = {"preconditions": {"uid": uid}} if uid is not None else {}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", **options}
        await self._call("DELETE", kinds.path(ref.kind, ref.namespace, ref.name), {}, body)

    async def watch(self, kind: str, since: int) -> AsyncIterator[Event]:
        version = since
        while True:
            query = {"watch": "true", "resourceVersion": str(version), "timeoutSeconds": str(WATCH_SECONDS)}
            query["allowWatchBookmarks"] = "true"
            response = await self._in_thread(partial(self._request, "GET", kinds.path(kind), query))
            lines: Iterator[bytes] = iter(response.response)
            try:
                while line := await self._in_thread(partial(next, lines, b"")):
                    news = json.loads(line)
                    if news["type"] == "ERROR":
                        raise _error(int(news["object"].get("code", 500)), str(news["object"].get("message")))
                    version = int(news["object"]["metadata"]["resourceVersion"])
                    if news["type"] != "BOOKMARK":
                        yield Event(news["type"], news["object"], version)
            finally:
                response.response.close()

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        def run() -> Object:
            response = self._request(method, path, query or {}, body, content_type)
            found: Object = json.loads(response.read())
            return found

        return await self._in_thread(run)

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Any:
        """The client's response, unread. Raises a ClusterError."""
        headers = {"Accept": "application/json", "Content-Type": content_type}
        target = f"{path}?{urllib.parse.urlencode(query)}" if query else path
        call = self._client.param_serialize(
            method, target, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        try:
            response: Any = self._client.call_api(*call, _request_timeout=(CONNECT_TIMEOUT, READ_TIMEOUT))
        except ApiException as error:
            raise _error(error.status, str(error.body or error.reason)) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"the API server cannot be asked: {error}") from None
        if response.status >= 300:
            raise _error(response.status, _message(response.read()))
        return response

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def _error(status: int, message: str) -> ClusterError:
    kind = _ERRORS.get(status, Unavailable if status >= 500 else ClusterError)
    if status == 422 and "metadata.uid" in message:
        kind = Conflict  # the object of that name is another one
    return kind(f"{status}: {message}")
