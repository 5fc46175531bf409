"""A real API server with Kubernetes' own controllers, a kubelet that is none, and the operator as it really runs."""

import asyncio
import base64
import contextlib
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import control_plane
import httpx
import pytest
import scrape
import waiting

from legato_operator.cluster import Object, Ref, is_leaving, uid_of
from legato_operator.controller import Retries
from legato_operator.errors import ClusterError, Conflict, ObjectNotFound
from legato_operator.kubernetes import main
from legato_operator.kubernetes.client.api import KubernetesCluster
from legato_operator.kubernetes.leases.lease import Terms
from legato_operator.kubernetes.settings import LEASE, OperatorSettings

CALLS = re.compile(r'^legato_operator_api_calls_total\{kind="(\w+)",outcome="(\w+)",verb="(\w+)"\} ([\d.e+]+)', re.M)
CONTROL_PORT = 8082  # fixed on Kubernetes; every pod has a loopback address of its own
PAUSE = 0.1  # seconds between questions, which take most of the processor time of an API server
QUICK = main.Timings(
    terms=Terms(duration=6, renew_within=5.0, retry=0.2),
    claims=Terms(duration=6, renew_within=5.0, retry=0.2),
    audit=2.0,
    retries=Retries(first=0.05, longest=0.5),
    read=10.0,
    silence=8.0,
)


@dataclass
class Kubelet:
    """Gives the pods of one namespace an address and readiness, answers for their workers, and ends them gracefully."""

    cluster: KubernetesCluster
    api: control_plane.ApiServer
    namespace: str
    busy: dict[str, int] = field(default_factory=dict)  # by pod: what a worker says that it runs
    asleep: set[str] = field(default_factory=set)  # pods that do not become ready, and do not end
    up: set[str] = field(default_factory=set)  # pods that run
    drained: set[str] = field(default_factory=set)
    trusted: set[str] = field(default_factory=set)  # pods that were sent a token
    _servers: dict[str, asyncio.Server] = field(default_factory=dict)
    _network: str = field(default_factory=lambda: f"127.{random.randrange(1, 255)}.{random.randrange(256)}")
    _next: int = 1

    async def run(self) -> None:
        """Until it is cancelled. An API server that is away is asked again."""
        try:
            while True:
                with contextlib.suppress(ClusterError):
                    for pod in (await self.cluster.list("Pod", self.namespace)).items:
                        with contextlib.suppress(ObjectNotFound, Conflict):
                            await self._tend(pod)
                await asyncio.sleep(PAUSE)
        finally:
            for server in self._servers.values():
                server.close()

    async def _tend(self, pod: Object) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if name in self.asleep:
            return
        if is_leaving(pod):
            if uid in self._servers:
                self._servers.pop(uid).close()
                self.up.discard(name)
                self.drained.discard(name)
            await self._call("DELETE", f"pods/{name}", {"gracePeriodSeconds": 0})
        elif uid not in self._servers:
            await self._start(pod, name, uid)

    async def _start(self, pod: Object, name: str, uid: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": "node"}
        bound = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        if not pod["spec"].get("nodeName"):
            await self._call("POST", f"pods/{name}/binding", bound)
        address = f"{self._network}.{self._next}"
        self._next += 1
        self._servers[uid] = await asyncio.start_server(
            lambda reader, writer: self._answer(name, reader, writer), address, CONTROL_PORT
        )
        ready = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "ContainersReady", "Ready")]
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": ready}
        await self.cluster.patch_status(Ref("Pod", self.namespace, name), status, uid)
        self.up.add(name)

    async def _answer(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if b"bearer" in head.lower():
                    self.trusted.add(name)
                if head.startswith(b"POST /drain"):
                    self.drained.add(name)
                if head.startswith(b"DELETE /drain"):
                    self.drained.discard(name)
                running, draining = self.busy.get(name, 0), name in self.drained
                state = {"running": running, "idle": not running, "draining": draining, "stopping": False}
                body = json.dumps(state | {"transport": "fake"}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async def _call(self, method: str, path: str, body: object) -> None:
        await asyncio.to_thread(self.api.call, method, f"/api/v1/namespaces/{self.namespace}/{path}", body)


@dataclass
class Space:
    """One namespace of the API server, with a user's hand in it."""

    api: control_plane.ApiServer
    cluster: KubernetesCluster
    name: str
    kubelet: Kubelet

    @contextlib.asynccontextmanager
    async def operator(self, identity: str = "one", url: str | None = None, **given: Any) -> AsyncIterator["Operator"]:
        """The operator, in this process, for this namespace only."""
        settings = OperatorSettings(
            **{
                "namespaces": (self.name,),
                "engine_image": "engine:test",
                "gateway_image": "gateway:test",
                "image_pull_policy": "IfNotPresent",
                "image_pull_secrets": (),
                "lease_namespace": self.name,
                "identity": identity,
                "http_port": 0,
                **given,
            }
        )
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(
            main.serve(settings, lambda: self.api.configuration(url), QUICK, port.set_result), name=identity
        )
        await asyncio.wait((task, port), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        try:
            yield Operator(task, port.result())
        finally:
            if task.done() and not task.cancelled():
                task.result()
            task.cancel()
            await asyncio.wait((task,))

    def path(self, plural: str = "inferenceservices") -> str:
        return f"/apis/serving.legato.dev/v1alpha1/namespaces/{self.name}/{plural}"

    def ref(self, name: str = "demo", kind: str = "InferenceService") -> Ref:
        return Ref(kind, self.name, name)

    async def make(self, service: Object, name: str = "demo") -> None:
        """Applies a service as a user does."""
        await self.cluster.apply({**service, "metadata": {"name": name, "namespace": self.name}}, "user", force=True)

    async def serve(self, service: Object, *names: str) -> None:
        """Applies services of one manifest, and waits until all are ready and up to date."""
        for name in names or ("demo",):
            await self.make(service, name)
        for name in names or ("demo",):
            await self.wait(lambda name=name: self.is_settled(name))

    async def end(self, name: str = "demo") -> None:
        """Deletes a service, and waits until it and its token are gone."""
        await self.cluster.delete(self.ref(name))
        await self.wait(lambda: self.is_gone(name=name))
        await self.wait(lambda: self.is_gone("Secret", f"{name}-token"))

    async def lease(self) -> Object:
        """The spec of the operator's Lease."""
        spec: Object = (await self.cluster.get(self.ref(LEASE, "Lease")))["spec"]
        return spec

    async def hold_lease(self, **spec: Any) -> None:
        """Takes the operator's Lease, or gives it back."""
        metadata = {"name": LEASE, "namespace": self.name}
        item = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        await self.cluster.apply(item, "thief", force=True)

    async def edit(self, kind: str, name: str, change: Callable[[Object], None]) -> None:
        """Changes an object as `kubectl edit` does; again where another wrote it meanwhile."""
        while True:
            found = await self.cluster.get(Ref(kind, self.name, name))
            change(found)
            with contextlib.suppress(Conflict):
                await self.cluster.replace(found)
                return

    async def call(
        self, method: str, path: str, body: object = None, content_type: str = "application/json", merge: bool = False
    ) -> tuple[int, Any]:
        """Status and content of a plain call; a relative path is one below this namespace in the core API."""
        path = path if path.startswith("/") else f"/api/v1/namespaces/{self.name}/{path}"
        content_type = "application/merge-patch+json" if merge else content_type
        return await asyncio.to_thread(self.api.call, method, path, body, content_type)

    async def condition(self, kind: str, name: str = "demo") -> tuple[str, str]:
        """Status and reason of a service's condition; empty ones when it has none yet."""
        try:
            found = (await self.cluster.get(self.ref(name))).get("status", {}).get("conditions", ())
        except ClusterError:
            return "", ""
        return next(((c["status"], c["reason"]) for c in found if c["type"] == kind), ("", ""))

    async def ready(self, name: str = "demo") -> bool:
        return (await self.condition("Ready", name))[0] == "True"

    async def message(self, kind: str = "Progressing", name: str = "demo") -> str:
        found = (await self.cluster.get(self.ref(name)))["status"]["conditions"]
        return next(condition["message"] for condition in found if condition["type"] == kind)

    async def is_current(self, name: str = "demo") -> bool:
        """True if the status is of the newest manifest."""
        return _is_seen(await self.cluster.get(self.ref(name)))

    async def is_settled(self, name: str = "demo") -> bool:
        """True if the service is ready, and all of the newest manifest is done."""
        item = await self.cluster.get(self.ref(name))
        found = {c["type"]: (c["status"], c["reason"]) for c in item.get("status", {}).get("conditions", ())}
        is_ready = found.get("Ready", ("",))[0] == "True"
        return _is_seen(item) and is_ready and found.get("Progressing") == ("False", "UpToDate")

    async def events(self) -> list[Object]:
        return (await self.call("GET", f"/apis/events.k8s.io/v1/namespaces/{self.name}/events"))[1]["items"]

    async def pods(self, role: str) -> dict[str, Object]:
        found = await self.cluster.list("Pod", self.name, {"serving.legato.dev/role": role})
        return {item["metadata"]["name"]: item for item in found.items}

    async def uids(self, *roles: str) -> dict[str, str]:
        """UIDs of the pods of `demo` in these roles, by name."""
        pods = [pod for role in roles for pod in (await self.pods(role)).items()]
        return {name: uid_of(pod) for name, pod in pods if name.startswith("demo-")}

    async def is_replaced(self, before: dict[str, str]) -> bool:
        """True if `demo` is ready, and none of its decode workers is one of before."""
        found = await self.uids("decode")
        return await self.ready() and found != {} and not {*found.values()} & {*before.values()}

    async def exists(self, kind: str, name: str) -> bool:
        try:
            await self.cluster.get(Ref(kind, self.name, name))
        except ObjectNotFound:
            return False
        return True

    async def is_gone(self, kind: str = "InferenceService", name: str = "demo") -> bool:
        return not await self.exists(kind, name)

    async def secret(self, name: str = "demo-token") -> dict[str, str]:
        """The content of a Secret; empty while it does not exist."""
        try:
            data = (await self.cluster.get(Ref("Secret", self.name, name))).get("data", {})
        except ClusterError:
            return {}
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    async def wait(self, condition: Callable[[], Any], *wanted: Any, seconds: float = 300) -> None:
        """Waits until it holds, or gives what is wanted."""
        await waiting.until(condition, *wanted, seconds=seconds, every=PAUSE)


def _is_seen(item: Object) -> bool:
    return bool(item.get("status", {}).get("observedGeneration") == item["metadata"]["generation"])


@dataclass(frozen=True)
class Operator:
    task: "asyncio.Task[None]"
    port: int

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.get(f"http://127.0.0.1:{self.port}{path}")

    async def metric(self, name: str, **labels: str) -> float:
        return await scrape.metric(self.port, f"legato_operator_{name}", **labels)

    async def calls(self) -> Counter[tuple[str, str, str]]:
        """Number of calls to the API server by verb, kind and outcome."""
        lines = CALLS.findall((await self.get("/metrics")).text)
        return Counter({(verb, kind, outcome): int(float(count)) for kind, outcome, verb, count in lines})


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder with the programs of a control plane; without them the test is skipped."""
    return control_plane.needed("kube-controller-manager")


@pytest.fixture(scope="session")
def controlled(programs: Path) -> Iterator[control_plane.ApiServer]:
    """An API server with Kubernetes' own controllers, and for that not the one of other tests: these write, too."""
    with control_plane.controlled(programs) as server:
        yield server


@pytest.fixture
def own(programs: Path) -> Iterator[control_plane.ApiServer]:
    """Such an API server for one test."""
    with control_plane.controlled(programs) as server:
        yield server


@contextlib.asynccontextmanager
async def _space(api: control_plane.ApiServer, given: str | None) -> AsyncIterator[Space]:
    name = given or f"space-{random.randrange(1 << 40):x}"
    if not given:
        status, answer = await asyncio.to_thread(api.call, "POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        assert status < 300, answer
    cluster = KubernetesCluster(api.client())
    kubelet = Kubelet(cluster, api, name)
    running = asyncio.create_task(kubelet.run())
    try:
        yield Space(api, cluster, name, kubelet)
    finally:
        running.cancel()
        await asyncio.wait((running,))
        cluster.close()


@pytest.fixture
def space(request: pytest.FixtureRequest) -> Callable[..., contextlib.AbstractAsyncContextManager[Space]]:
    """Opens a fresh namespace: `async with space() as s`. `space(api, name)` is one there is, elsewhere."""
    return lambda api=None, name=None: _space(api or request.getfixturevalue("controlled"), name)


@pytest.fixture
async def s(space: Callable[..., contextlib.AbstractAsyncContextManager[Space]]) -> AsyncIterator[Space]:
    """A fresh namespace of the API server with controllers."""
    async with space() as opened:
        yield opened


@pytest.fixture
async def operator(s: Space) -> AsyncIterator[Operator]:
    async with s.operator() as running:
        yield running
