"""The gateway's process: serves until it is stopped."""

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import ASGIApp

from legato_gateway import access_log, assembly
from legato_gateway.errors import Overloaded
from legato_gateway.gateway import Gateway
from legato_gateway.generation_config import GenerationDefaults
from legato_gateway.http import server
from legato_gateway.http.connections import protocol
from legato_gateway.http.connections.body_rate import BodyRate
from legato_gateway.http.connections.limits import ConnectionLimits, Connections
from legato_gateway.http.control import ByPort
from legato_gateway.serving.bodies import preparation
from legato_gateway.settings import GatewaySettings
from legato_gateway.tokenizer.tokens import ModelTokenizer
from legato_protocol import names
from legato_protocol.model_files import model_digest
from legato_protocol.process import open_files
from legato_protocol.process.parent import die_with_parent
from legato_protocol.security.tls_server import TLSServer

STOPPING = "stopping"  # drop reason: this gateway is about to end
LAST_WORDS = 2.0  # seconds after the drain deadline in which clients get their errors


def run(settings: GatewaySettings, model: Path) -> int:
    """Serves the model at that path until SIGTERM or SIGINT. Raises SettingsError, TokenizeError, and
    BadGenerationConfig."""
    if settings.parent and not die_with_parent(settings.parent):
        return 1
    logging.basicConfig(level=logging.INFO, format=access_log.LINE, stream=sys.stderr)
    limits = assembly.connection_limits(settings, open_files.raise_limit())
    tokens, defaults = ModelTokenizer.load(model), assembly.defaults(settings, model)
    processes = preparation.start_processes()
    try:
        listeners = server.listeners(settings)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, tokens, model_digest.digest(model), listeners, limits, processes, defaults))
    finally:
        preparation.end_processes(processes)
    return 0


def _tune_garbage_collection() -> None:
    """Tunes garbage collection: streams make few cycles, so it searches little memory and seldom."""
    gc.collect()
    gc.freeze()  # modules and vocabulary are permanent; walking them stopped all streams for 40 ms
    gc.set_threshold(20_000, 10, 10)


async def _serve(
    settings: GatewaySettings,
    tokens: ModelTokenizer,
    model: str,
    listeners: server.Listeners,
    limits: ConnectionLimits,
    processes: Sequence[Executor],
    defaults: GenerationDefaults,
) -> None:
    loop = asyncio.get_running_loop()
    gateway = Gateway(settings, tokens, model, loop, processes, defaults)
    serving = _server(settings, gateway, listeners, limits)

    def stop() -> None:
        serving.should_exit = True
        gateway.watch.close()
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
            serving.should_exit = True  # following only ends by a fault
        await served
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        if gateway.tracing is not None:
            await asyncio.to_thread(gateway.tracing.close)


def _server(
    settings: GatewaySettings, gateway: Gateway, listeners: server.Listeners, limits: ConnectionLimits
) -> server.Server:
    """Returns the server, with each application at its ports, and the limit on connections."""
    ports = listeners.ports
    own: dict[str, ASGIApp] = {server.HEALTH: gateway.health}
    own |= {names.CONTROL: gateway.control, names.CONTROL_TLS: gateway.control}
    places = Connections(
        limits,
        ports[server.PUBLIC],
        partial(gateway.metrics.count, "closed_connections"),
        count_refusal=gateway.relay.demand.count_refusal,
    )
    config = uvicorn.Config(
        BodyRate(ByPort(gateway.app, {ports[name]: app for name, app in own.items() if name in ports}), places),
        http=protocol.factory(places),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        callback_notify=places.check_descriptors,
        timeout_notify=1,
        proxy_headers=False,  # peers are the connecting hosts: trusted proxies are named in the settings
        timeout_graceful_shutdown=max(1, round(settings.drain_deadline + LAST_WORDS)),
    )
    shown = {server.PUBLIC: gateway.certificate, names.CONTROL_TLS: gateway.internal_tls}
    secured = partial(TLSServer, places=places, patience=limits.head)
    tls = {name: partial(secured, certificate=each) for name, each in shown.items() if each is not None}
    return server.Server(config, listeners, settings.announce, min(server.LINGER, settings.drain_deadline), tls)
