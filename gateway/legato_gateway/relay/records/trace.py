"""Spans of requests: the request, its admission and each attempt, below which workers add their own.

Names and attributes follow OpenTelemetry's conventions for GenAI
(https://github.com/open-telemetry/semantic-conventions/tree/main/docs/gen-ai). `gen_ai.latency.*` is vLLM's, and
`legato.*` is for the rest. They contain no text, token or tenant of a request.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from legato_gateway.errors import GatewayError
from legato_gateway.relay.attempt_place import AttemptPlace
from legato_gateway.relay.lifecycle import LifecycleEvent
from legato_gateway.request import GenerationRequest, RouteRecord, Usage
from legato_protocol.wire.stream import Failed

if TYPE_CHECKING:
    from legato_telemetry.spans import Attribute, OpenSpan, Tracing

E = LifecycleEvent
_LATENCIES = {
    "first_token": ("gen_ai.response.time_to_first_chunk", "gen_ai.latency.time_to_first_token"),
    "queue": ("gen_ai.latency.time_in_queue",),
    "prefill": ("gen_ai.latency.time_in_model_prefill",),
    "handoff": ("legato.latency.time_in_handoff",),
    "decode": ("gen_ai.latency.time_in_model_decode",),
    "stream": ("legato.latency.time_in_stream",),
    "tpot": ("legato.latency.time_per_output_token",),
    "total": ("gen_ai.latency.e2e",),
}


class TracedSubRequest(Protocol):
    """The part of a sub-request that its spans show."""

    id: str
    parent: str
    attempt: int
    place: AttemptPlace | None
    target: AttemptPlace | None
    last_failure: Failed | None


class RequestTracer:
    """Starts traces of requests for `model`."""

    def __init__(self, tracing: "Tracing", model: str) -> None:
        self._tracing = tracing
        self._model = model

    def begin(self, request: GenerationRequest) -> "RequestTrace | None":
        """Returns None for a request that is not traced."""
        if not request.trace:
            return None
        name = f"{request.operation} {self._model}"
        arrived = time.time_ns() - round(request.elapsed * 1e9)
        span = self._tracing.start(name, "internal", request.trace, attributes=_asked(request, self._model), at=arrived)
        return RequestTrace(self._tracing, span) if span is not None else None


@dataclass(slots=True)
class _Attempt:
    span: "OpenSpan"
    placed: bool = False


class RequestTrace:
    """The open spans of one request. The driver reports every lifecycle event of its sub-requests."""

    def __init__(self, tracing: "Tracing", span: "OpenSpan") -> None:
        self._tracing = tracing
        self._span = span
        self._admission = tracing.start("legato.admission", "internal", span.traceparent)
        self._attempts: dict[tuple[str, int], _Attempt] = {}  # by sub-request and attempt
        self._last: dict[str, OpenSpan] = {}  # the attempt that a sub-request is in, or was in last

    def dispatched(self, sub: TracedSubRequest) -> str:
        """Starts the span of a new attempt and returns its traceparent for the workers."""
        self._drop_unplaced(sub)
        before = self._last.get(sub.id) or self._last.get(sub.parent)
        attributes: dict[str, Attribute] = {"legato.attempt": sub.attempt, "legato.sub_request": sub.id}
        links = (before,) if before is not None else ()
        span = self._tracing.start("legato.attempt", "client", self._span.traceparent, attributes, links)
        if span is None:
            return ""
        self._attempts[sub.id, sub.attempt] = _Attempt(span)
        self._last[sub.id] = span
        return span.traceparent

    def stepped(self, sub: TracedSubRequest, event: LifecycleEvent) -> None:
        """Records `event`, before its actions are performed."""
        match event:
            case E.ADMITTED:
                self._end_admission()
            case E.ENQUEUED if self._admission is not None:
                self._admission.event("queued")
            case E.PLACED:
                self._placed(sub, sub.place)
            case E.MIGRATION_STARTED:
                self._placed(sub, sub.target)
                self._span.event("migration", _moves(sub))
            case E.FIRST_TOKEN:
                if sub.place is not None and (attempt := self._attempts.get((sub.id, sub.place.attempt))):
                    attempt.span.event("first_token")
            case E.COMMITTED:
                self._ended(sub, sub.place)
            case E.MIGRATION_FAILED:
                self._ended(sub, sub.target, "migration_failed")
            case E.FAILED | E.FAILED_OFTEN | E.WORKER_LOST:
                self._failed(sub)

    def ended(self, route: RouteRecord, usage: Usage, error: GatewayError | None) -> None:
        """Ends the request's span and all that are open below it."""
        code = _code(error)
        self._end_admission(code)
        for attempt in self._attempts.values():
            _end(attempt.span, code)
        self._attempts, self._last = {}, {}
        self._span.set(_came(route, usage, error))
        _end(self._span, code)

    def _placed(self, sub: TracedSubRequest, place: AttemptPlace | None) -> None:
        if place is None or (attempt := self._attempts.get((sub.id, place.attempt))) is None:
            return
        attempt.placed = True
        attempt.span.set({"legato.decode.worker": place.decode})
        if place.prefill:
            attempt.span.set({"legato.prefill.worker": place.prefill})

    def _failed(self, sub: TracedSubRequest) -> None:
        """Ends the spans of the failed attempt: the sub-request is dispatched again."""
        code = sub.last_failure.code if sub.last_failure is not None else "internal"
        attributes: dict[str, Attribute] = {"error.type": code}
        if sub.place is not None:
            attributes["legato.attempt"] = sub.place.attempt
        self._span.event("redispatch", attributes)
        self._ended(sub, sub.place, code)
        self._ended(sub, sub.target, code)

    def _ended(self, sub: TracedSubRequest, place: AttemptPlace | None, code: str = "") -> None:
        """Ends an attempt's span. An attempt whose choices were split stays open until the request ends."""
        if place is not None and (attempt := self._attempts.pop((sub.id, place.attempt), None)) is not None:
            _end(attempt.span, code)

    def _drop_unplaced(self, sub: TracedSubRequest) -> None:
        """Ends the spans of attempts whose workers disconnected before they were sent."""
        for key in [key for key, attempt in self._attempts.items() if key[0] == sub.id and not attempt.placed]:
            _end(self._attempts.pop(key).span, "stale")

    def _end_admission(self, code: str = "") -> None:
        if self._admission is not None:
            _end(self._admission, code)
            self._admission = None


def _end(span: "OpenSpan", code: str) -> None:
    if code:
        span.fail(code)
    span.end()


def _moves(sub: TracedSubRequest) -> "dict[str, Attribute]":
    reason = sub.target.migrates if sub.target is not None else None
    return {"legato.attempt": sub.attempt, "legato.migration.reason": reason or ""}


def _code(error: GatewayError | None) -> str:
    return "" if error is None else error.code or error.type


def _asked(request: GenerationRequest, model: str) -> "dict[str, Attribute]":
    params = request.params
    asked: dict[str, Attribute] = {
        "gen_ai.operation.name": request.operation,
        "gen_ai.provider.name": "legato",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.response.id": request.id,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.usage.input_tokens": len(request.prompt),
    }
    if request.choices > 1:
        asked["gen_ai.request.choice.count"] = request.choices
    if params.top_k:
        asked["gen_ai.request.top_k"] = params.top_k
    if params.presence_penalty:
        asked["gen_ai.request.presence_penalty"] = params.presence_penalty
    if params.frequency_penalty:
        asked["gen_ai.request.frequency_penalty"] = params.frequency_penalty
    return asked


def _came(route: RouteRecord, usage: Usage, error: GatewayError | None) -> "dict[str, Attribute]":
    came: dict[str, Attribute] = {
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
    }
    if route.preemptions:
        came["legato.preemptions"] = route.preemptions
    if route.kv_blocks_peak:
        came["legato.kv.blocks_reserved"] = route.kv_blocks_reserved
        came["legato.kv.blocks_peak"] = route.kv_blocks_peak
    if error is None:
        came["gen_ai.response.finish_reasons"] = route.finish.split(",")
    for phase, names in _LATENCIES.items():
        if phase in route.seconds:
            came |= dict.fromkeys(names, route.seconds[phase])
    return came
