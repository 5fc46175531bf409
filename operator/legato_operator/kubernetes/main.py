"""Assembles and runs the operator's process on Kubernetes."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace

import aiohttp
from kubernetes.client import Configuration

from legato_operator.autoscaling import Autoscaler
from legato_operator.clock import SystemClock
from legato_operator.cluster import Object, Ref, labels_of, ref_of
from legato_operator.controller import Controller, Reconciles, Retries, service_of
from legato_operator.errors import ClusterError, NotLeading
from legato_operator.kubernetes import health
from legato_operator.kubernetes.cache.cluster import CachedCluster
from legato_operator.kubernetes.cache.known_objects import WatchedStore
from legato_operator.kubernetes.client import connection
from legato_operator.kubernetes.client.api import READ_TIMEOUT, KubernetesCluster
from legato_operator.kubernetes.events import Events
from legato_operator.kubernetes.handlers import LABELLED, SILENCE_SECONDS, WATCHED, Handlers
from legato_operator.kubernetes.leases import claims as namespace_claims
from legato_operator.kubernetes.leases.claims import ClaimedPasses, NamespaceClaims
from legato_operator.kubernetes.leases.leader import Leader
from legato_operator.kubernetes.leases.lease import Terms
from legato_operator.kubernetes.settings import OperatorSettings
from legato_operator.kubernetes.token_access import Account, TokenAccess
from legato_operator.kubernetes.watchdog import AUDIT_SECONDS, Reactions, Watchdog
from legato_operator.manifests import common, placement
from legato_operator.manifests.placement import Containers, PodPlacement
from legato_operator.metrics.operator_metrics import OperatorMetrics
from legato_operator.observing.gateway_api import HttpGateways
from legato_operator.observing.gateway_signals import GatewaySignalSource
from legato_operator.observing.route_hosts import RouteHosts
from legato_operator.observing.worker_api import HttpWorkers
from legato_operator.planning.rollout.waves import Waves
from legato_operator.reconcile import Collaborators, Reconciler
from legato_operator.upgrading import UpgradeScheduler
from legato_operator.waking import DemandWaker
from legato_protocol import names

LEASE_READ_SECONDS = 5.0
_DAY = 24 * 3600.0  # seconds
WAIT_SECONDS = 2.0  # between checks for an API server that serves the custom resources
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Timings:
    """Intervals of the process's own checks and Leases, and limits of waits for the API server, in seconds."""

    terms: Terms = field(default_factory=Terms)
    claims: Terms = namespace_claims.TERMS
    audit: float = AUDIT_SECONDS
    retries: Retries = field(default_factory=Retries)
    gather: float = 0.2
    read: float = READ_TIMEOUT
    silence: float = SILENCE_SECONDS


def run(settings: OperatorSettings, load: Callable[[], Configuration] = connection.load) -> int:
    """Serves until SIGTERM or SIGINT. Raises NoConnection, and OSError if the port cannot be bound."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for noisy in ("kopf", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    asyncio.run(_until_signal(settings, load))
    return 0


async def _until_signal(settings: OperatorSettings, load: Callable[[], Configuration]) -> None:
    serving = asyncio.create_task(serve(settings, load))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, serving.cancel)
    await asyncio.wait((serving,))
    if not serving.cancelled():
        serving.result()


async def serve(
    settings: OperatorSettings,
    load: Callable[[], Configuration],
    timings: Timings | None = None,
    report_port: Callable[[int], None] = lambda port: None,
) -> None:
    """Serves until cancelled; then passes end, and the Lease is released."""
    timings = timings or Timings()
    configuration = await asyncio.to_thread(load)
    metrics = OperatorMetrics()
    async with _connected(configuration, metrics, timings.read) as clients:
        await _Process(settings, load, timings, metrics, clients).serve(report_port)


@dataclass(frozen=True)
class _Clients:
    """Clients of one process. Leases have their own connections and threads: renewals must not wait for other calls."""

    cluster: KubernetesCluster
    leases: KubernetesCluster
    session: aiohttp.ClientSession  # of workers' and gateways' control ports


@contextlib.asynccontextmanager
async def _connected(
    configuration: Configuration, metrics: OperatorMetrics, read_timeout: float
) -> AsyncIterator[_Clients]:
    cluster = KubernetesCluster(connection.client(configuration), metrics.called, read_timeout=read_timeout)
    leases = KubernetesCluster(
        connection.client(configuration), metrics.called, threads=2, read_timeout=LEASE_READ_SECONDS
    )
    with contextlib.closing(cluster), contextlib.closing(leases):
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            yield _Clients(cluster, leases, session)


def _placement(settings: OperatorSettings) -> PodPlacement:
    containers = Containers(
        settings.engine_image,
        settings.gateway_image,
        settings.image_pull_policy,
        settings.image_pull_secrets,
        settings.own_namespace,
    )
    return replace(
        placement.kubernetes(containers),
        gpu_resources=settings.gpu_resources,
        tracing_endpoint=settings.tracing_endpoint,
        token_lifetime=settings.token_lifetime * _DAY,
    )


class _Process:
    """One replica of the operator."""

    def __init__(
        self,
        settings: OperatorSettings,
        load: Callable[[], Configuration],
        timings: Timings,
        metrics: OperatorMetrics,
        clients: _Clients,
    ) -> None:
        cluster = clients.cluster
        self._settings = settings
        self._pace = timings
        self._metrics = metrics
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._store = WatchedStore(WATCHED)
        self._leader = Leader(
            clients.leases,
            settings.lease_namespace,
            settings.identity,
            timings.terms,
            settings.lease_name,
            settings.service_account,
        )
        release = f"{settings.lease_namespace}/{settings.lease_name}"
        self._claims = NamespaceClaims(clients.leases, release, timings.claims)
        led = cluster.guarded(lambda namespace: self._leader.check(namespace, self._claims.holds))
        self._led = CachedCluster(led, self._store, LABELLED)
        self._anywhere = cluster.guarded(self._leader.check)  # also writes in namespaces of other releases
        self._events = Events(self._anywhere, settings.identity)
        self._gateways = HttpGateways(clients.session)
        self._waker = DemandWaker(self._gateways, SystemClock())
        self._remove_unused: Callable[[Iterable[str | None]], Awaitable[None]] | None = None
        self._controller = Controller(self._passes(clients.session), metrics, timings.retries, timings.gather)
        self._handlers = Handlers(load, settings.namespaces, self._notify, timings.silence, self._watches_ended)
        self._watchdog = Watchdog(
            cluster,
            settings.namespaces,
            self._store,
            Reactions(metrics.missed, self._wake, self._watch_anew),
            self._controller.longest_pass,
        )
        self._show_state()

    def _passes(self, session: aiohttp.ClientSession) -> Reconciles:
        """Returns passes over services in namespaces that this release has claimed, with access to their tokens."""
        reconciler = self._reconciler(session)
        if role := self._settings.token_role:
            account = Account(self._settings.lease_namespace, self._settings.service_account)
            access = TokenAccess(reconciler, self._anywhere, role, account)
            reconciler, self._remove_unused = access, access.remove_unused
        return ClaimedPasses(reconciler, self._led, self._claims, self._events, self._leave)

    def _leave(self, service: Ref) -> None:
        """Forgets a service that another release manages."""
        self._metrics.services.remove(service)
        self._waker.forget(service)

    def _reconciler(self, session: aiohttp.ClientSession) -> Reconciles:
        settings, clock, services = self._settings, SystemClock(), self._metrics.services
        bounds = Waves(settings.upgrade_services, settings.upgrade_pause)
        collaborators = Collaborators(
            recorder=self._events,
            journal=services,
            gateways=self._gateways,
            hosts=RouteHosts(self._cluster, clock, settings.namespaces),
            autoscaler=Autoscaler(GatewaySignalSource(), services, settings.gpu_resources),
            upgrades=UpgradeScheduler(self._cluster, self._led, clock, bounds, settings.namespaces, self._claims.holds),
            waker=self._waker,
        )
        return Reconciler(self._led, HttpWorkers(session), clock, _placement(settings), collaborators)

    def _show_state(self) -> None:
        """Connects metrics that are evaluated at each scrape."""
        metrics = self._metrics
        metrics.services.leads = self._leader.holds
        metrics.taken = lambda: self._claims.taken if self._leader.holds() else {}
        metrics.synced.set_function(lambda: float(self._store.trusted))
        metrics.leader.set_function(lambda: float(self._leader.holds()))

    async def serve(self, report_port: Callable[[int], None]) -> None:
        """Serves health first, then starts watches, then takes the Lease."""
        checks = health.Checks(self._watchdog.complaint, self._unready, self._metrics.answer)
        async with health.serving(self._settings.http_port, checks) as port:
            report_port(port)
            await self._wait_known()
            self._handlers.start()
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._watchdog.run(self._pace.audit))
                    tasks.create_task(self._leader.lead(self._lead))
            finally:
                await asyncio.to_thread(self._handlers.stop)

    async def _lead(self) -> None:
        """Runs the leader's tasks. Wakes all services first, then follows events.

        The store is distrusted at first: another replica may have led meanwhile, and a dead watch has not reported its
        writes.
        """
        self._watchdog.distrust()
        self._claims.forget()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._claims.keep())
            tasks.create_task(self._controller.run())
            tasks.create_task(self._waker.run(self._controller.poll))
            tasks.create_task(self._events.run())
            while not await self._wake_all():  # noqa: ASYNC110 - only the API server knows
                await asyncio.sleep(WAIT_SECONDS)
            await self._tidy()

    async def _tidy(self) -> None:
        """Removes leftovers of services that were deleted while no operator ran. The next leader retries failures."""
        try:
            if self._remove_unused is not None:
                await self._remove_unused(self._settings.namespaces or (None,))
        except NotLeading:
            raise
        except ClusterError as error:
            log.warning("bindings of namespaces without services cannot be removed: %s", error)

    async def _wake_all(self) -> bool:
        try:
            for namespace in self._settings.namespaces or (None,):
                for item in (await self._cluster.list_metadata(names.INFERENCE_SERVICE, namespace)).items:
                    self._wake(item)
        except ClusterError as error:
            log.warning("services cannot be listed: %s", error)
            return False
        return True

    async def _wait_known(self) -> None:
        """Waits until the API server serves the custom resources, which kopf discovers only once."""
        while True:
            try:
                for kind in (names.INFERENCE_SERVICE, names.WORKER_POOL):
                    for namespace in self._settings.namespaces or (None,):
                        await self._cluster.list_metadata(kind, namespace)
                return
            except ClusterError as error:
                log.warning("waiting for the API server and its custom resources: %s", error)
                await asyncio.sleep(WAIT_SECONDS)

    def _notify(self, item: Object, gone: bool) -> None:
        """Called in kopf's thread for every event."""
        self._metrics.saw(item["kind"])
        self._loop.call_soon_threadsafe(self._changed, item, gone)

    def _watches_ended(self) -> None:
        """Called in kopf's thread when watches have ended and are about to restart."""
        self._loop.call_soon_threadsafe(self._distrust)

    def _distrust(self) -> None:
        self._store.forget()
        self._watchdog.distrust()

    def _changed(self, item: Object, gone: bool) -> None:
        self._store.report(item, gone)
        if gone and labels_of(item).get(names.LABEL_ROLE) == common.TOKEN:  # the Secret of this name was deleted, too
            self._led.forget(Ref("Secret", ref_of(item).namespace, ref_of(item).name))
        self._wake(item)

    def _wake(self, item: Object) -> None:
        ref = service_of(item)
        if ref is not None and ref.namespace not in self._settings.ignored_namespaces:
            own = item["kind"] == names.INFERENCE_SERVICE
            self._controller.wake(ref, item["metadata"].get("generation", 0) if own else 0)

    def _watch_anew(self) -> None:
        self._store.forget()
        self._handlers.restart()

    def _unready(self) -> str:
        if not self._handlers.running():
            return "not all watches run"
        return self._claims.complaint() if self._leader.holds() else ""
