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

import uvicorn
import uvloop

from legato_gateway import access_log
from legato_gateway.admission.queue import Admission, AdmissionLimits, Quota
from legato_gateway.discovery import Discovery, FileDiscovery, StaticDiscovery, WorkerAddress
from legato_gateway.errors import InternalFault, Overloaded
from legato_gateway.http import app, control, server
from legato_gateway.http.control import ByPort
from legato_gateway.http.demand_report import DemandReporter
from legato_gateway.http.protocol import BoundedProtocol
from legato_gateway.http.state import State
from legato_gateway.metrics import Metrics
from legato_gateway.openai.serving import ServedModel
from legato_gateway.relay.dispatcher import Dispatcher
from legato_gateway.relay.history import History
from legato_gateway.relay.relay import RelayPolicy, RequestRelay
from legato_gateway.relay.retry import RetryPolicy
from legato_gateway.routing.choose import Policy
from legato_gateway.routing.kv_index import KVIndex
from legato_gateway.settings import GatewaySettings
from legato_gateway.timers import Timers
from legato_gateway.tokenizer.tokens import ModelTokenizer
from legato_gateway.ui.load_samples import LoadSampler
from legato_gateway.ui.ui_state import UIState
from legato_gateway.workers.fleet import Fleet
from legato_gateway.workers.links import Links, opener
from legato_gateway.workers.worker_stream import StreamLimits
from legato_protocol import model_digest
from legato_protocol.flags import SettingsError
from legato_protocol.parent import die_with_parent

STOPPING = "stopping"  # drop reason: this gateway is about to end
LAST_WORDS = 2.0  # seconds beyond the drain deadline in which clients are told


class Gateway:
    """All parts of one gateway, put together. `model` is the digest of what `tokens` were loaded from."""

    def __init__(self, settings: GatewaySettings, tokens: ModelTokenizer, model: str, timers: Timers) -> None:
        fleet, index, history, metrics = Fleet(timers.time, model), KVIndex(settings.index_blocks), History(), Metrics()
        limits = AdmissionLimits(
            max_held=settings.max_queued_requests,
            max_held_tokens=settings.max_queued_tokens,
            quotas={tenant: Quota(tokens / 60, tokens) for tenant, tokens in settings.tenant_quotas},
        )
        admission = Admission(limits)
        name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self.links = Links(fleet, opener(name, settings.token, StreamLimits(silence=settings.worker_silence)))
        policy = Policy(settings.local_prefill_below_tokens, settings.when_prefill_unavailable)
        self.relay = RequestRelay(
            fleet=fleet,
            index=index,
            admission=admission,
            dispatcher=Dispatcher(fleet, index, policy, self.links.send, random.SystemRandom(), timers.time),
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
        )
        self.discovery = _discovery(settings)
        demand = DemandReporter(name, self.relay, fleet, timers.time)
        self.samples = LoadSampler(fleet, self.relay)
        state = State(
            fleet, index, admission, history, metrics, self.relay, self.discovery, demand, settings.hold_without_workers
        )
        served = ServedModel(settings.served_name, settings.max_length)
        parts = app.Parts(
            tokens=tokens,
            relay=self.relay,
            status=state,
            model=served,
            default_deadline=settings.default_deadline,
            max_body_bytes=settings.max_body_bytes,
            log_access=access_log.writer(settings.access_log),
        )
        self.app = app.create(parts)
        shown = UIState(name, served, state, self.relay, self.samples)
        self.control = control.create(demand.report, shown.report, self.app, settings.token)

    async def follow(self) -> None:
        """Keeps streams to the workers until cancelled. A fault of ours ends all requests, and is raised."""
        sampling = asyncio.create_task(self.samples.run())
        try:
            await self.links.follow(self.discovery, self.relay.workers)
        except Exception:
            self.relay.end_all(InternalFault("this gateway has a fault and stops"))
            raise
        finally:
            sampling.cancel()


def run(settings: GatewaySettings, model: Path) -> int:
    """Serves the model at that path until SIGTERM or SIGINT. Raises SettingsError, TokenizeError."""
    if settings.parent and not die_with_parent(settings.parent):
        return 1
    logging.basicConfig(level=logging.INFO, format=access_log.LINE, stream=sys.stderr)
    listeners = server.listeners(settings)
    tokens = ModelTokenizer.load(model)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, tokens, model_digest.of(model), listeners))
    return 0


def _tune_garbage_collection() -> None:
    """Streams make no cycles to speak of: what is searched for them is kept small, and searched seldom."""
    gc.collect()
    gc.freeze()  # modules and vocabulary stay for good; walking them stopped all streams for 40 ms
    gc.set_threshold(20_000, 10, 10)


async def _serve(settings: GatewaySettings, tokens: ModelTokenizer, model: str, listeners: server.Listeners) -> None:
    loop = asyncio.get_running_loop()
    gateway = Gateway(settings, tokens, model, loop)
    config = uvicorn.Config(
        ByPort(gateway.app, gateway.control, listeners.ports.get("control")),
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=max(1, round(settings.drain_deadline + LAST_WORDS)),
    )
    serving = server.Server(config, listeners, settings.announce, min(server.LINGER, settings.drain_deadline))

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
    return kubernetes.KubernetesDiscovery(connect, settings.namespace, settings.workers_service)
