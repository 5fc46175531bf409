"""Discovers workers by the EndpointSlices of their headless Service. The gateway's only client of Kubernetes.

The official client supports every way into a cluster and reads a rotated token again. It costs 10 MiB of memory and 3
MB of a compressed image. Its calls block, so one thread lists and watches. Known workers stay while the API is
unreachable: a gateway outlives its API server.
"""

import asyncio
import contextlib
import logging
import threading
import urllib.parse
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import urllib3
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
from yaml import YAMLError

from legato_gateway.discovery import membership
from legato_gateway.discovery.addresses import WorkerAddress
from legato_gateway.discovery.endpoint_slices import PLAIN, TLS, BadAnswer, Expired, Slices, message
from legato_gateway.discovery.membership import Members
from legato_gateway.timers import Backoff

_POOLS = "/apis/serving.legato.dev/v1alpha1/namespaces/{namespace}/workerpools/{name}"
_UNREADABLE = (403, 404)  # the operator does not grant access, or is missing
_SERVICE = "kubernetes.io/service-name"  # the label by which slices belong to a Service
_log = logging.getLogger(__name__)

Connect = Callable[[], ApiClient]
Publish = Callable[[tuple[WorkerAddress, ...]], None]


class Unreachable(Exception):
    """The API is unreachable, or refuses. The text says why; `code` is the HTTP status, if any."""

    def __init__(self, text: str, code: int = 0) -> None:
        self.code = code
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds. A connection that broke silently is detected after `watch` + `slack`."""

    connect: float = 5.0
    answer: float = 10.0  # to a list, and to the opening of a watch
    watch: int = 30  # the server ends a watch after that
    slack: float = 5.0
    doubt: int = 5  # longest time until the pools are asked again about an unknown pod
    backoff_first: float = 0.2
    backoff_most: float = 15.0


def connect(kubeconfig: str) -> ApiClient:
    """Returns a client of the kubeconfig's cluster, or without one of the cluster that this pod is in.

    Raises Unreachable if the files are missing or invalid.
    """
    configuration = Configuration()
    configuration.retries = False  # retries are decided here, and start with a list
    try:
        if kubeconfig:
            load_kube_config(kubeconfig, client_configuration=configuration, persist_config=False)  # type: ignore[no-untyped-call]
        else:
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        return ApiClient(configuration)
    except (ConfigException, OSError, YAMLError) as error:
        raise Unreachable(f"the cluster's address and token cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class _Source:
    """The slices and pools of one Service. `ports` are names of control ports, preferred ones first."""

    connect: Connect
    path: str
    pools: tuple[str, ...]
    ports: Sequence[str]
    limits: Limits


class KubernetesDiscovery:
    """The workers behind the Service `service` of `namespace`. Each round starts with a new `connect`."""

    def __init__(
        self, connect: Connect, namespace: str, service: str, limits: Limits | None = None, tls: bool = False
    ) -> None:
        """With `tls`, workers are reached at their TLS port, if they have one."""
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        pools = tuple(_POOLS.format(namespace=namespace, name=name) for name in membership.pools(service))
        path += f"?labelSelector={urllib.parse.quote(f'{_SERVICE}={service}')}"
        self._source = _Source(connect, path, pools, TLS if tls else PLAIN, limits or Limits())
        self.problem = "the workers have not been listed yet"

    async def watch(self) -> AsyncIterator[tuple[WorkerAddress, ...]]:
        loop = asyncio.get_running_loop()
        updates: asyncio.Queue[tuple[WorkerAddress, ...] | BaseException] = asyncio.Queue()

        def publish(update: tuple[WorkerAddress, ...] | BaseException) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(updates.put_nowait, update)

        def run() -> None:
            try:
                follower.run()
            except BaseException as fault:  # raised by the iterator
                publish(fault)

        follower = _Follower(self._source, publish, self._say)
        threading.Thread(target=run, name="endpoint-slices", daemon=True).start()
        try:
            while True:
                update = await updates.get()
                if isinstance(update, BaseException):
                    raise update
                yield update
        finally:
            follower.stop()

    def _say(self, problem: str) -> None:
        if problem == self.problem:
            return
        self.problem = problem
        if problem:
            _log.warning("workers cannot be looked up, known ones are kept: %s", problem)
        else:
            _log.info("workers are looked up in the Service's EndpointSlices")


class _Follower:
    """The thread's work: list, watch until that fails, pause, list again."""

    def __init__(self, source: _Source, publish: Publish, say: Callable[[str], None]) -> None:
        self._source = source
        self._limits = source.limits
        self._members = Members()
        self._doubted = 0  # consecutive rounds with an unknown pod
        self._notify = publish
        self._say = say
        self._slices = Slices(source.ports)
        self._known: tuple[WorkerAddress, ...] | None = None
        self._stopped = threading.Event()
        self._watched: urllib3.BaseHTTPResponse | None = None

    def run(self) -> None:
        """Runs until `stop`."""
        pauses = Backoff(self._limits.backoff_first, self._limits.backoff_most)
        while not self._stopped.is_set():
            try:
                for _ in self._round():
                    pauses.reset()
            except Expired as error:
                _log.info("listing the workers again: %s", error)
            except (Unreachable, BadAnswer) as error:
                if not self._stopped.is_set():
                    self._say(str(error))
            self._stopped.wait(pauses.next())

    def stop(self) -> None:
        """Stops from any thread, and ends a watch that waits for its next event."""
        self._stopped.set()
        watched = self._watched
        if watched is not None:
            with contextlib.suppress(OSError, RuntimeError, ValueError):  # it has just ended by itself
                watched.shutdown()

    def _round(self) -> Iterator[None]:
        """Yields on every sign that watching works. Ends only by raising Unreachable, Expired or BadAnswer."""
        client = self._source.connect()
        with contextlib.closing(client):
            with self._get(client, self._source.path, {}, self._limits.answer) as listing:
                self._slices.replace(_read(listing))
            self._publish(client)
            while not self._stopped.is_set():
                yield from self._watch(client)
                self._publish(client)
                self._stopped.wait(self._limits.backoff_first)  # a proxy may end every watch immediately

    def _watch(self, client: ApiClient) -> Iterator[None]:
        seconds = min(self._limits.watch, self._limits.doubt, self._doubted) or self._limits.watch
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": self._slices.version}
        query["timeoutSeconds"] = str(seconds)
        with self._get(client, self._source.path, query, seconds + self._limits.slack) as response:
            self._watched = response
            try:
                self._say("")
                if self._stopped.is_set():  # and `stop` did not see this watch
                    return
                for line in _lines(response):
                    self._slices.apply(line)
                    self._publish(client)
                    yield
                yield
            finally:
                self._watched = None

    def _publish(self, client: ApiClient) -> None:
        """Publishes the workers if they changed. Now and again, it asks the pools about unknown pods."""
        uids = self._slices.uids
        if self._members.doubts(uids):
            self._members.learn(uids, [self._pool(client, path) for path in self._source.pools])
        self._doubted = self._doubted + 1 if self._members.doubts(uids) else 0
        workers = self._slices.workers(self._members.known)
        if workers != self._known:
            self._known = workers
            self._notify(workers)

    def _pool(self, client: ApiClient, path: str) -> bytes | None:
        """Returns a WorkerPool; None if it is missing or may not be read. Raises Unreachable."""
        try:
            with self._get(client, path, {}, self._limits.answer) as answer:
                return _read(answer)
        except Unreachable as error:
            if error.code in _UNREADABLE:
                return None
            raise

    def _get(
        self, client: ApiClient, path: str, query: Mapping[str, str], silence: float
    ) -> contextlib.AbstractContextManager[urllib3.BaseHTTPResponse]:
        """Returns an unread answer, closed after use. Raises Unreachable, Expired."""
        target = f"{path}&{urllib.parse.urlencode(query)}" if query else path
        call = client.param_serialize("GET", target, auth_settings=["BearerToken"])
        try:
            answer: Any = client.call_api(*call, _request_timeout=(self._limits.connect, silence))
        except ApiException as error:
            raise Unreachable(f"{error.status}: {error.reason}") from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(_reason(error)) from None
        response: urllib3.BaseHTTPResponse = answer.response
        if response.status >= 300:
            with contextlib.closing(response):
                text = f"{response.status}: {message(_read(response))}"
            raise Expired(text) if response.status == 410 else Unreachable(text, response.status)
        return contextlib.closing(response)


def _read(response: urllib3.BaseHTTPResponse) -> bytes:
    try:
        return response.read()
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise Unreachable(_reason(error)) from None


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    try:
        yield from response
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise Unreachable(_reason(error)) from None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
