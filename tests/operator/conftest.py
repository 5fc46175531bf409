"""Builders for the operator's tests: manifests with overrides, and a local cluster of fake processes."""

import asyncio
import contextlib
import copy
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import control_plane
import pytest
import waiting

from legato_operator.autoscaling import Autoscaler, Scaled
from legato_operator.clock import Clock, SystemClock
from legato_operator.cluster import Cluster, Object, Ref
from legato_operator.controller import Controller
from legato_operator.local import following
from legato_operator.local.cluster import LocalCluster, open_cluster
from legato_operator.local.logs import Logs
from legato_operator.local.settings import LocalSettings
from legato_operator.manifests import placement
from legato_operator.metrics.operator_metrics import OperatorMetrics
from legato_operator.metrics.service_metrics import ServiceMetrics
from legato_operator.observing.observe import Gateways
from legato_operator.observing.observed import Observed, PeerTLS
from legato_operator.observing.worker_api import HttpWorkers
from legato_operator.reconcile import Collaborators, Reconciler, StatusJournal
from legato_operator.waking import DemandWaker
from legato_protocol.wire.canary import Canary

CRDS = Path(__file__).parents[2] / "crds"
GATEWAY_API = Path(__file__).parents[1] / "support" / "gateway_api_httproutes.yaml"
FAKE = Path(__file__).with_name("fake_legato.py")
PROGRAM = (sys.executable, "-SE", str(FAKE))  # without site-packages it starts in half of the time
QUICK = LocalSettings(
    announce_interval=0.01,
    probe_interval_starting=0.02,
    probe_interval=0.1,
    probe_timeout=3.0,  # not less: where other tests have the processor, a worker that lives must not be killed
    liveness_misses=2,
    backoff_first=0.01,
    backoff_longest=0.5,  # a process that crashes for ever costs little
)


def manifest(**spec: Any) -> Object:
    """A minimal service, with fields of its spec added or replaced."""
    minimal = {"model": {"source": {"builtin": "smollm2-135m-instruct"}}}
    return {
        "apiVersion": "serving.legato.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo"},
        "spec": copy.deepcopy(minimal | spec),
    }


@dataclass
class Fakes:
    """A local cluster whose pods are fakes, steered through files."""

    cluster: LocalCluster
    folder: Path
    reconciler: Reconciler
    lines: list[str] = field(default_factory=list)
    misses: int = QUICK.liveness_misses

    def steer(self, name: str, kind: str, text: str = "") -> None:
        (self.folder / f"{name}.{kind}").write_text(text)

    def gpus(self, name: str) -> str:
        """The GPUs that the process of a pod sees."""
        return (self.folder / f"{name}.gpus").read_text()

    def starts(self, name: str) -> list[int]:
        """Process numbers of every start of a pod so far."""
        path = self.folder / f"{name}.starts"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    async def pods(self, pool: str = "") -> dict[str, Object]:
        items = (await self.cluster.store.list("Pod")).items
        role = "serving.legato.dev/role"
        return {i["metadata"]["name"]: i for i in items if pool in ("", i["metadata"]["labels"][role])}

    async def ready(self, pool: str = "") -> set[str]:
        found = (await self.pods(pool)).items()
        return {n for n, p in found if any(c["status"] == "True" for c in p.get("status", {}).get("conditions", ()))}

    async def service(self, name: str = "demo") -> Object:
        return await self.cluster.store.get(Ref("InferenceService", "default", name))

    async def apply(self, item: Object) -> None:
        """Apply a service as a user does."""
        await self.cluster.store.apply(item, "user", force=True)

    async def scale(self, pool: str, replicas: int) -> None:
        """Desire that many workers, as a scaler does."""
        item = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "WorkerPool", "metadata": {"name": f"demo-{pool}"}}
        await self.cluster.store.apply(item | {"spec": {"replicas": replicas}}, "legato-scaler", force=True)

    async def delete(self, kind: str, name: str = "demo") -> None:
        await self.cluster.store.delete(Ref(kind, "default", name))

    async def conditions(self) -> dict[str, Any]:
        """Conditions of the service, by their types."""
        return {c["type"]: c for c in (await self.service()).get("status", {}).get("conditions", ())}

    async def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition; empty ones when there is none yet."""
        found = (await self.conditions()).get(kind, {})
        return found.get("status", ""), found.get("reason", "")

    async def is_ready(self) -> bool:
        return (await self.condition("Ready"))[0] == "True"

    async def has(self, pool: str, *names: str) -> bool:
        """True if exactly these are the pool's pods, and ready."""
        return await self.ready(pool) == set(names) == set(await self.pods(pool))

    async def has_none(self, kind: str) -> bool:
        return not (await self.cluster.store.list(kind)).items

    async def wait(self, condition: Callable[[], Any], *wanted: Any) -> None:
        """Waits until it holds, or gives what is wanted."""
        await waiting.until(condition, *wanted, seconds=60, every=0.02)


class _Nobody:
    """Stands for parts that most tests leave out: nothing is recorded or scaled, and no gateway answers."""

    async def record(self, about: Object, warning: bool, reason: str, note: str) -> None:
        return

    async def report(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> None:
        return

    async def set_canary(
        self, address: str, tokens: Sequence[str], canary: Canary | None, tls: PeerTLS | None = None
    ) -> None:
        return

    async def poll(self, observed: Observed) -> Scaled:
        return Scaled()

    def follow(self, service: Ref, observed: Observed, idle: bool) -> bool:
        return False

    def forget(self, service: Ref) -> None:
        return


@contextlib.asynccontextmanager
async def _fakes(
    folder: Path,
    reconciled: bool = True,
    autoscaler: Autoscaler | None = None,
    journal: StatusJournal | None = None,
    clock: Clock | None = None,
    seen: Callable[[Cluster], Cluster] = lambda cluster: cluster,
    gpus: tuple[str, ...] = (),
    waker: DemandWaker | None = None,
    gateways: Gateways | None = None,
) -> AsyncIterator[Fakes]:
    """`clock` is the reconciler's, and `seen` is the cluster as it finds it. Without `reconciled`, passes are the
    test's own.
    """
    lines: list[str] = []
    environment = {**os.environ, "FAKE_FOLDER": str(folder), "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    async with (
        open_cluster(Logs(lines.append), SystemClock(), environment, QUICK, gpus=gpus) as cluster,
        aiohttp.ClientSession() as session,
    ):
        where = placement.local(PROGRAM, gpus=gpus)
        workers = HttpWorkers(session)
        nobody: Any = _Nobody()
        collaborators = Collaborators(
            nobody, journal or ServiceMetrics(), gateways or nobody, autoscaler or nobody, waker or nobody
        )
        reconciler = Reconciler(seen(cluster.store), workers, clock or SystemClock(), where, collaborators)
        running = (
            following.run(cluster.store, Controller(reconciler, OperatorMetrics()), waker)
            if reconciled
            else asyncio.Event().wait()
        )
        controller = asyncio.ensure_future(running)
        try:
            yield Fakes(cluster, folder, reconciler, lines)
        finally:
            controller.cancel()
            await asyncio.wait((controller,))  # a pass that runs writes to the cluster, which is closed next
            if not controller.cancelled():
                controller.result()


@pytest.fixture(scope="session")
def api_server() -> Iterator[control_plane.ApiServer]:
    """A real API server that knows the CRDs, and HTTPRoutes."""
    with control_plane.running(control_plane.needed()) as server:
        server.install([*sorted(CRDS.glob("*.yaml")), GATEWAY_API])
        yield server


@pytest.fixture
def build() -> Callable[..., Object]:
    return manifest


@pytest.fixture
def fakes(tmp_path: Path) -> Callable[..., contextlib.AbstractAsyncContextManager[Fakes]]:
    """Opens a local cluster of fakes: `async with fakes() as f`."""
    return lambda *given, **named: _fakes(tmp_path, *given, **named)


@pytest.fixture
async def f(fakes: Callable[..., contextlib.AbstractAsyncContextManager[Fakes]]) -> AsyncIterator[Fakes]:
    """A local cluster of fakes, reconciled."""
    async with fakes() as opened:
        yield opened
