"""The gateway's composition root: from settings to a process that serves until it is told to stop."""

import asyncio
import contextlib
import gc
import logging
import random
import secrets
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
import uvloop
from starlette.types import ASGIApp

from legato_gateway import access_log, generation_config
from legato_gateway.admission.limits import AdmissionLimits
from legato_gateway.admission.queue import Admission
from legato_gateway.clients.identify import Clients, Quotas
from legato_gateway.clients.key_file import KeyFile
from legato_gateway.discovery import Discovery, FileDiscovery, StaticDiscovery, WorkerAddress
from legato_gateway.errors import InternalFault, Overloaded
from legato_gateway.generation_config import NEUTRAL, GenerationDefaults
from legato_gateway.http import app, connections, control, health, protocol, server
from legato_gateway.http.certificate import Certificate
from legato_gateway.http.connections import ConnectionLimits, Connections
from legato_gateway.http.control import ByPort
from legato_gateway.http.demand_report import DemandReporter
from legato_gateway.http.state import State
from legato_gateway.metrics import Metrics
from legato_gateway.openai.body_budget import BodyBudget
from legato_gateway.openai.event_stream import StreamPolicy
from legato_gateway.openai.preparation_forks import PreparationForks
from legato_gateway.openai.responses.store import ResponseStore, StorePolicy
from legato_gateway.openai.serving import ServedModel
from legato_gateway.relay.dispatcher import Dispatcher
from legato_gateway.relay.history import History
from legato_gateway.relay.relay import RelayPolicy, RequestRelay
from legato_gateway.relay.retry import RetryPolicy
from legato_gateway.relay.trace import RequestTracer
from legato_gateway.routing.choose import Policy
from legato_gateway.routing.kv_index import KVIndex
from legato_gateway.routing.scorers import Weights
from legato_gateway.settings import GatewaySettings
from legato_gateway.timers import Timers
from legato_gateway.tokenizer.tokens import ModelTokenizer
from legato_gateway.ui.load_samples import LoadSampler
from legato_gateway.ui.ui_state import UIState
from legato_gateway.workers.fleet import Fleet
from legato_gateway.workers.links import Links, opener
from legato_gateway.workers.silence import SilenceLimits
from legato_gateway.workers.worker_stream import StreamLimits
from legato_protocol import model_digest, names, open_files
from legato_protocol.flags import SettingsError
from legato_protocol.followed_files import InvalidFile
from legato_protocol.followed_tokens import RefusalLog, ServiceTokens
from legato_protocol.parent import die_with_parent
from legato_protocol.tls_files import InternalTLS
from legato_protocol.tls_server import TLSServer

if TYPE_CHECKING:
    from legato_telemetry.spans import Tracing

_log = logging.getLogger(__name__)
STOPPING = "stopping"  # drop reason: this gateway is about to end
LAST_WORDS = 2.0  # seconds beyond the drain deadline in which clients are told


class Gateway:
    """All parts of one gateway, put together. `model` is the digest of what `tokens` were loaded from."""

    def __init__(
        self,
        settings: GatewaySettings,
        tokens: ModelTokenizer,
        model: str,
        timers: Timers,
        forks: PreparationForks | None = None,
        defaults: GenerationDefaults = NEUTRAL,
    ) -> None:
        keys = _api_keys(settings.api_keys_file)
        clients = Clients(keys, settings.trusted_proxies)
        fleet, index, history = Fleet(timers.time, model), KVIndex(settings.index_blocks), History()
        self.certificate = _certificate(settings)
        self.internal_tls = _internal_tls(settings)
        responses = _response_store(settings, timers)
        metrics = Metrics(index, clients, self.certificate, self.internal_tls, responses)
        limits = AdmissionLimits(
            max_held=settings.max_queued_requests,
            max_held_tokens=settings.max_queued_tokens,
            quotas=Quotas(dict(settings.tenant_quotas), keys),
        )
        admission = Admission(limits)
        self._keys = keys
        name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        weights = Weights(
            settings.prefix_cache_weight,
            settings.kv_cache_utilization_weight,
            settings.step_time_weight,
            settings.adapter_weight,
        )
        policy = Policy(settings.local_prefill_below_tokens, settings.when_prefill_unavailable, weights)
        self._tokens = ServiceTokens(settings.token, settings.token_folder)
        self._refusals = RefusalLog()
        stream_limits, strict = (
            StreamLimits(SilenceLimits(settings.worker_silence)),
            settings.internal_tls_mode == "Strict",
        )
        self.links = Links(fleet, opener(name, self._tokens, stream_limits, self.internal_tls, strict))
        self.tracing = _tracing(settings, name)
        self.metrics = metrics
        self.relay = RequestRelay(
            fleet=fleet,
            index=index,
            admission=admission,
            dispatcher=Dispatcher(
                fleet, index, policy, self.links.send, random.SystemRandom(), timers.time, settings.adapters
            ),
            vocabulary=tokens,
            snapshots=self.links,
            history=history,
            metrics=metrics,
            timers=timers,
            policy=RelayPolicy(
                settings.slow_client,
                settings.buffer_tokens,
                RetryPolicy(on_transfer_failure=settings.transfer_on_failure, max_failures=settings.max_retries),
            ),
            tracer=RequestTracer(self.tracing, settings.served_name) if self.tracing is not None else None,
        )
        self.discovery = _discovery(settings)
        served = ServedModel(settings.served_name, settings.max_length, defaults=defaults)
        demand = DemandReporter(name, self.relay, fleet, timers.time, self._tokens)
        self.samples = LoadSampler(fleet, self.relay)
        state = State(
            fleet,
            index,
            admission,
            history,
            metrics,
            self.relay,
            self.discovery,
            demand,
            settings.hold_without_workers,
            {"name": served.name, "max_length": served.context, "default_sampling_params": defaults.given()},
        )
        parts = app.Parts(
            tokens=tokens,
            relay=self.relay,
            status=state,
            model=served,
            default_deadline=settings.default_deadline,
            max_body_bytes=settings.max_body_bytes,
            pending_bodies=BodyBudget(settings.max_pending_body_bytes),
            streams=StreamPolicy(settings.stream_start == "Admission", settings.stream_keep_alive),
            clients=clients,
            log_access=access_log.writer(settings.access_log),
            tracing=self.tracing,
            forks=forks,
            tool_call_parser=settings.tool_call_parser,
            reasoning_parser=settings.reasoning_parser,
            responses=responses,
            allowed_origins=settings.allowed_origins,
            adapters=settings.adapters,
        )
        self.app = app.create(parts)
        shown = UIState(name, served, state, self.relay, self.samples)
        self.health = health.create(state)
        self.control = control.create(demand.report, state.state, shown.report, self.app, self._tokens, self._refused)

    async def follow(self) -> None:
        """Keeps streams to the workers until cancelled. A fault of ours ends all requests, and is raised."""
        beside = [asyncio.create_task(self.samples.run())]
        beside.append(asyncio.create_task(self._tokens.follow(lambda: None, _log.warning)))
        if self._keys is not None:
            beside.append(asyncio.create_task(self._keys.follow(_log.log)))
        for files in (self.certificate, self.internal_tls):
            if files is not None:
                beside.append(asyncio.create_task(files.follow(_log.log)))
        try:
            await self.links.follow(self.discovery, self.relay.workers)
        except Exception:
            self.relay.end_all(InternalFault("this gateway has a fault and stops"))
            raise
        finally:
            for task in beside:
                task.cancel()

    def _refused(self, who: str) -> None:
        self.metrics.token_refused("gateway")
        if line := self._refusals.note(f"refused {who}: it shows no token, or not the service's"):
            _log.warning(line)


def run(settings: GatewaySettings, model: Path) -> int:
    """Serves the model at that path until SIGTERM or SIGINT. Raises SettingsError, TokenizeError, and
    BadGenerationConfig."""
    if settings.parent and not die_with_parent(settings.parent):
        return 1
    logging.basicConfig(level=logging.INFO, format=access_log.LINE, stream=sys.stderr)
    limits = _connection_limits(settings, open_files.raise_limit())
    listeners = server.listeners(settings)
    tokens, defaults = ModelTokenizer.load(model), _defaults(settings, model)
    forks = PreparationForks(tokens)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, tokens, model_digest.of(model), listeners, limits, forks, defaults))
    return 0


def _defaults(settings: GatewaySettings, model: Path) -> GenerationDefaults:
    """What counts for sampling where requests say nothing, as is logged. Raises BadGenerationConfig."""
    if settings.generation_config == "None":
        _log.info("sampling defaults are neutral: --generation-config is None")
        return NEUTRAL
    found = generation_config.load(model)
    _log.info("sampling defaults of the model: %s", found)
    return found


def _tune_garbage_collection() -> None:
    """Streams make no cycles to speak of: what is searched for them is kept small, and searched seldom."""
    gc.collect()
    gc.freeze()  # modules and vocabulary stay for good; walking them stopped all streams for 40 ms
    gc.set_threshold(20_000, 10, 10)


def _connection_limits(settings: GatewaySettings, open_files: int) -> ConnectionLimits:
    return ConnectionLimits(
        most=connections.places(settings.max_connections, open_files),
        head=settings.head_timeout,
        body_rate=settings.min_body_rate,
        idle=settings.idle_timeout,
    )


async def _serve(
    settings: GatewaySettings,
    tokens: ModelTokenizer,
    model: str,
    listeners: server.Listeners,
    limits: ConnectionLimits,
    forks: PreparationForks,
    defaults: GenerationDefaults,
) -> None:
    loop = asyncio.get_running_loop()
    gateway = Gateway(settings, tokens, model, loop, forks, defaults)
    ports = listeners.ports
    own: dict[str, ASGIApp] = {server.HEALTH: gateway.health}
    own |= {names.CONTROL: gateway.control, names.CONTROL_TLS: gateway.control}
    places = Connections(limits, ports[server.PUBLIC], gateway.metrics.connection_closed)
    config = uvicorn.Config(
        ByPort(gateway.app, {ports[name]: app for name, app in own.items() if name in ports}),
        http=protocol.of(places),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        callback_notify=places.check_descriptors,
        timeout_notify=1,
        proxy_headers=False,  # peers are who connects: proxies that may say more are named in the settings
        timeout_graceful_shutdown=max(1, round(settings.drain_deadline + LAST_WORDS)),
    )
    shown = {server.PUBLIC: gateway.certificate, names.CONTROL_TLS: gateway.internal_tls}
    secured = partial(TLSServer, places=places, patience=limits.head)
    tls = {name: partial(secured, certificate=each) for name, each in shown.items() if each is not None}
    linger = min(server.LINGER, settings.drain_deadline)
    serving = server.Server(config, listeners, settings.announce, linger, tls)

    def stop() -> None:
        serving.should_exit = True
        ending = Overloaded("this gateway stops, and the drain deadline is over", reason=STOPPING)
        loop.call_later(settings.drain_deadline, gateway.relay.end_all, ending)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    _tune_garbage_collection()
    following = asyncio.create_task(gateway.follow())
    served = asyncio.create_task(serving.serve(listeners.sockets))
    try:
        await asyncio.wait({following, served}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            serving.should_exit = True  # following ends by a fault alone
        await served
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        if gateway.tracing is not None:
            await asyncio.to_thread(gateway.tracing.close)


def _tracing(settings: GatewaySettings, name: str) -> "Tracing | None":
    if not settings.traces:
        return None
    from legato_telemetry.spans import Tracing

    return Tracing("legato-gateway", name, _log.warning)


def _response_store(settings: GatewaySettings, timers: Timers) -> ResponseStore | None:
    if settings.response_retention is None:
        return None
    return ResponseStore(StorePolicy(settings.response_retention, settings.response_memory), timers.time)


def _api_keys(path: Path | None) -> KeyFile | None:
    """Raises SettingsError for a file that cannot be used."""
    try:
        return KeyFile(path) if path is not None else None
    except InvalidFile as error:
        raise SettingsError(f"--api-keys-file {error}") from None


def _certificate(settings: GatewaySettings) -> Certificate | None:
    """Raises SettingsError for files that cannot be used."""
    if settings.tls_certificate_file is None or settings.tls_key_file is None:
        return None
    try:
        return Certificate(settings.tls_certificate_file, settings.tls_key_file)
    except InvalidFile as error:
        raise SettingsError(f"--tls-certificate-file {error}") from None


def _internal_tls(settings: GatewaySettings) -> InternalTLS | None:
    """Raises SettingsError for files that cannot be used."""
    if settings.internal_tls_folder is None:
        return None
    try:
        return InternalTLS(settings.internal_tls_folder, settings.internal_tls_name)
    except InvalidFile as error:
        raise SettingsError(f"--internal-tls-folder {error}") from None


def _discovery(settings: GatewaySettings) -> Discovery:
    if settings.workers_file is not None:
        return FileDiscovery(settings.workers_file)
    if settings.workers_service:
        return _on_kubernetes(settings)
    return StaticDiscovery(tuple(WorkerAddress(name, address) for name, address in settings.workers))


def _on_kubernetes(settings: GatewaySettings) -> Discovery:
    from legato_gateway.discovery import kubernetes

    connect = partial(kubernetes.connect, settings.kubeconfig)
    try:
        connect()
    except kubernetes.Unreachable as error:
        raise SettingsError(f"--workers-service {settings.workers_service}: {error}") from None
    tls = settings.internal_tls_folder is not None
    return kubernetes.KubernetesDiscovery(connect, settings.namespace, settings.workers_service, tls=tls)
