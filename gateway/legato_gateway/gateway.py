"""One gateway, composed of its parts."""

import asyncio
import logging
import random
import secrets
import socket
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

from legato_gateway import access_log, assembly
from legato_gateway.admission.demand import Demand
from legato_gateway.clients.identify import Clients
from legato_gateway.errors import InternalFault
from legato_gateway.generation_config import NEUTRAL, GenerationDefaults
from legato_gateway.http import app, control, health
from legato_gateway.http.demand_report import DemandReporter, DemandWatch
from legato_gateway.http.state import State
from legato_gateway.metrics.gateway_metrics import Metrics
from legato_gateway.relay.context import RelayContext
from legato_gateway.relay.dispatcher import SubRequestDispatcher
from legato_gateway.relay.records.history import History
from legato_gateway.relay.records.trace import RequestTracer
from legato_gateway.relay.relay import RequestRelay
from legato_gateway.routing.kv_index import KVIndex
from legato_gateway.serving.bodies.budget import BodyBudget
from legato_gateway.serving.bodies.preparation import PreparationPool
from legato_gateway.serving.context import ServingContext
from legato_gateway.serving.event_stream import StreamPolicy
from legato_gateway.serving.model_serving import ModelServing, ServedModel
from legato_gateway.settings import GatewaySettings
from legato_gateway.timers import Timers
from legato_gateway.tokenizer.block_cache import CacheUse
from legato_gateway.tokenizer.tokens import ModelTokenizer
from legato_gateway.ui.page_data import LoadSampler, UIState
from legato_gateway.workers.fleet import Fleet
from legato_gateway.workers.links import Links, opener
from legato_gateway.workers.served import ServedAdapters, ServedLength
from legato_gateway.workers.silence import StreamLimits
from legato_protocol.model_files.adapter_file import AdapterFile
from legato_protocol.security.followed_tokens import RefusalLog, ServiceTokens

_log = logging.getLogger(__name__)


class Gateway:
    """`model` is the digest of the model that `tokens` were loaded from. Raises SettingsError."""

    def __init__(
        self,
        settings: GatewaySettings,
        tokens: ModelTokenizer,
        model: str,
        timers: Timers,
        processes: Sequence[Executor] = (),
        defaults: GenerationDefaults = NEUTRAL,
    ) -> None:
        self._name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._keys = assembly.api_keys(settings)
        self._tokens = ServiceTokens(settings.token, settings.token_folder)
        self._refusals = RefusalLog()
        self.certificate = assembly.certificate(settings)
        self.internal_tls = assembly.internal_tls(settings)
        self.tracing = assembly.tracing(settings, self._name)
        self._clients = Clients(self._keys, settings.trusted_proxies, dict(settings.tenant_max_output))
        self._responses = assembly.response_store(settings, timers)
        self._fleet, index = Fleet(timers.time, model), KVIndex(settings.index_blocks)
        self._token_cache = CacheUse()
        self.metrics = Metrics(
            index, self._clients, self.certificate, self.internal_tls, self._responses, self._token_cache
        )
        self._adapter_file = AdapterFile(settings.adapters_file) if settings.adapters_file else None
        self._adapters = ServedAdapters(self._fleet, settings.adapters, self._adapter_file, settings.served_name)
        self.discovery = assembly.discovery(settings)
        self.links = self._links(settings)
        self._length = ServedLength(self._fleet, settings.max_length, tokens.declared_length)
        self.watch = DemandWatch()
        admission, demand = assembly.admission(settings, self._keys), Demand(self.watch.notify)
        context = RelayContext(self._fleet, index, admission, History(), self.metrics, timers, demand)
        self.relay = self._relay(settings, tokens, context)
        self.samples = LoadSampler(self._fleet, self.relay)
        length, most = self._length.tokens(), settings.max_output_tokens
        served = ServedModel(settings.served_name, length, most, defaults=defaults)
        reporter = DemandReporter(self._name, self.relay, self._fleet, timers.time, self._tokens, self._adapter_file)
        model_serving = ModelServing.of_model(tokens, served, settings.tool_call_parser, settings.reasoning_parser)
        state = self._state(settings, model_serving, context, reporter)
        serving = self._serving(settings, model_serving, processes)
        log = access_log.writer(settings.access_log)
        self.app = app.create(app.Parts(serving, state, log, self.tracing, self._responses, settings.allowed_origins))
        self.health = health.create(state)
        shown = UIState(self._name, state.state, self.relay, self.samples)
        self.control = control.create(
            reporter.report,
            state.state,
            shown.report,
            self.app,
            self._tokens,
            self._refused,
            self.watch,
            self.relay.set_canary,
        )

    def _links(self, settings: GatewaySettings) -> Links:
        limits = StreamLimits(settings.worker_silence)
        strict = settings.internal_tls_mode == "Strict"
        return Links(self._fleet, opener(self._name, self._tokens, limits, self.internal_tls, strict))

    def _relay(self, settings: GatewaySettings, tokens: ModelTokenizer, context: RelayContext) -> RequestRelay:
        routing, longest = assembly.routing(settings), self._length.tokens
        dispatcher = SubRequestDispatcher(context, routing, self.links.send, random.SystemRandom(), longest)
        tracer = RequestTracer(self.tracing, settings.served_name) if self.tracing is not None else None
        return RequestRelay(context, dispatcher, tokens, self.links, assembly.relaying(settings), tracer)

    def _state(
        self, settings: GatewaySettings, serving: ModelServing, context: RelayContext, demand: DemandReporter
    ) -> State:
        known = {"name": serving.model.name, "default_sampling_params": serving.model.defaults.given()}

        def model() -> dict[str, Any]:
            return {**known, "max_length": self._length.tokens(), **serving.formats()}

        return State(context, self.relay, self.discovery, demand, settings.hold_without_workers, model)

    def _serving(
        self, settings: GatewaySettings, model_serving: ModelServing, processes: Sequence[Executor]
    ) -> ServingContext:
        return ServingContext(
            model_serving=model_serving,
            relay=self.relay,
            adapters=self._adapters.names,
            length=self._length.tokens,
            clients=self._clients,
            streams=StreamPolicy(settings.stream_start == "Admission", settings.stream_keep_alive),
            default_deadline=settings.default_deadline,
            max_duration=settings.max_duration,
            max_body_bytes=settings.max_body_bytes,
            pending_bodies=BodyBudget(settings.max_pending_body_bytes, self.relay.demand.count_refusal),
            preparation=PreparationPool(processes),
            token_cache=self._token_cache,
        )

    async def follow(self) -> None:
        """Keeps streams to the workers until cancelled. A fault in its code ends all requests, and is raised."""
        background = [asyncio.create_task(self.samples.run())]
        background.append(asyncio.create_task(self._tokens.follow(lambda: None, _log.warning)))
        for files in (self._keys, self.certificate, self.internal_tls, self._adapter_file):
            if files is not None:
                background.append(asyncio.create_task(files.follow(_log.log)))
        try:
            await self.links.follow(self.discovery, self.relay.workers)
        except Exception:
            self.relay.end_all(InternalFault("this gateway has a fault and stops"))
            raise
        finally:
            for task in background:
                task.cancel()

    def _refused(self, who: str) -> None:
        self.metrics.count("refused_tokens", "gateway")
        if line := self._refusals.note(f"refused {who}: it shows no token, or not the service's"):
            _log.warning(line)
