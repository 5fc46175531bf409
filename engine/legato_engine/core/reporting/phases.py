"""Phases of traced requests: queue, prefill, hand-off, decode. The server exports them as spans.

A phase is reported when it ends. This module does not use OpenTelemetry.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from legato_engine.core.frames import PhaseName, TracedPhase
from legato_engine.scheduler.requests.request import Request, RequestState
from legato_engine.scheduler.results import Emission
from legato_engine.transfer.session.events import Arrived
from legato_protocol.wire.stream import Finish


@dataclass(slots=True)
class _OpenPhase:
    name: PhaseName
    began: float
    tokens: int = 0  # emitted in the decode phase


class PhaseLog:
    """Follows the requests that their gateway traces, from arrival to end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[Request, _OpenPhase] = {}
        self._ended: list[TracedPhase] = []

    def on_arrived(self, request: Request) -> None:
        """Opens the queue phase of an accepted request."""
        if request.trace:
            self._open[request] = _OpenPhase("queue", request.arrival)

    def on_started(self, request: Request) -> None:
        """Opens the prefill phase when the request is in a step for the first time."""
        if (phase := self._open.get(request)) is not None and phase.name == "queue":
            self._next(request, "prefill")

    def on_prefilled(self, requests: Iterable[Request]) -> None:
        """Ends the prefill phase of requests whose prompts were computed for a hand-off."""
        if self._open:
            self.end(requests)

    def on_emitted(self, emission: Emission) -> None:
        """Counts emitted tokens of a traced request. Its first token opens the decode phase."""
        request = emission.request
        phase = self._open.get(request)
        if phase is None or phase.name != "decode":
            phase = self._next(request, "decode")
        phase.tokens += len(emission.sampled)
        if emission.finish is not None:
            self._end(request, finish=emission.finish)

    def on_received(self, request: Request, event: Arrived) -> None:
        """Adds the complete hand-off to this worker. The queue phase ended when its blocks were granted."""
        if request not in self._open:
            return
        now = self._clock()
        granted = max(now - event.seconds, request.arrival)
        self._end(request, at=granted)
        details: dict[str, str | int] = {
            "source": event.source,
            "bytes": event.bytes,
            "blocks": event.blocks,
            "cached_blocks": event.cached,
        }
        self._ended.append(TracedPhase(request.trace, "handoff", granted, now, details))

    def add_fetch(self, trace: str, began: float, ended: float, details: dict[str, str | int], error: str = "") -> None:
        """Adds a fetch of cached blocks that a traced request waited for, alongside its other phases."""
        if trace:
            self._ended.append(TracedPhase(trace, "kv_fetch", began, ended, details, error))

    def on_failed(self, key: str, attempt: int, code: str) -> None:
        """Ends the current phase of a failed attempt with the error code."""
        for request in [r for r in self._open if r.id == key and r.attempt == attempt]:
            self._end(request, error=code)

    def end(self, requests: Iterable[Request]) -> None:
        """Ends the current phase of these requests, if they have one."""
        for request in requests:
            if request in self._open:
                self._end(request)

    def take(self) -> tuple[TracedPhase, ...]:
        """Returns the phases that ended since the last call."""
        if self._open:
            self.end([request for request in self._open if request.state is RequestState.ENDED])
        phases, self._ended = tuple(self._ended), []
        return phases

    def _next(self, request: Request, name: PhaseName) -> _OpenPhase:
        now = self._clock()
        if request in self._open:
            self._end(request, at=now)
        phase = self._open[request] = _OpenPhase(name, now)
        return phase

    def _end(self, request: Request, *, at: float | None = None, error: str = "", finish: Finish | None = None) -> None:
        phase = self._open.pop(request)
        ended = self._clock() if at is None else at
        details = _details(request, phase, finish)
        self._ended.append(TracedPhase(request.trace, phase.name, phase.began, ended, details, error))


def _details(request: Request, phase: _OpenPhase, finish: Finish | None) -> dict[str, str | int]:
    if phase.name == "prefill":
        return {"input_tokens": request.prompt_len, "cached_tokens": request.cached_tokens}
    if phase.name != "decode":
        return {}
    details: dict[str, str | int] = {"choice": request.choice, "output_tokens": phase.tokens}
    return details if finish is None else {**details, "finish": finish}
