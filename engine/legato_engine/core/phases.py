"""When traced requests waited, were computed and came by hand-off, for the server to make spans of. No OpenTelemetry.

A request is followed from its arrival to its end, and each phase is told once it is over.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from legato_engine.core.frames import PhaseName, TracedPhase
from legato_engine.scheduler.request import Request, RequestState
from legato_engine.scheduler.results import Emission
from legato_engine.transfer.events import Arrived
from legato_protocol.stream import Finish


@dataclass(slots=True)
class _OpenPhase:
    name: PhaseName
    began: float
    tokens: int = 0  # told while it decodes


class PhaseLog:
    """Of those requests alone that their gateway traces."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[Request, _OpenPhase] = {}
        self._told: list[TracedPhase] = []

    def arrived(self, request: Request) -> None:
        """A gateway sent it here, and it is taken in."""
        if request.trace:
            self._open[request] = _OpenPhase("queue", request.arrival)

    def begun(self, request: Request) -> None:
        """It is in a step for the first time."""
        if (phase := self._open.get(request)) is not None and phase.name == "queue":
            self._next(request, "prefill")

    def prefilled(self, requests: Iterable[Request]) -> None:
        """Their prompts are computed, for a hand-off."""
        if self._open:
            self.ended(requests)

    def emitted(self, emission: Emission) -> None:
        """Tokens of it are told: it decodes, from the first one on."""
        request = emission.request
        if not request.trace:
            return
        phase = self._open.get(request)
        if phase is None or phase.name != "decode":
            phase = self._next(request, "decode")
        phase.tokens += len(emission.sampled)
        if emission.finish is not None:
            self._end(request, finish=emission.finish)

    def received(self, request: Request, event: Arrived) -> None:
        """Its hand-off to this worker is complete, which it waited for until blocks were granted."""
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
        self._told.append(TracedPhase(request.trace, "handoff", granted, now, details))

    def failed(self, key: str, attempt: int, code: str) -> None:
        """That attempt ended without its tokens."""
        for request in [r for r in self._open if r.id == key and r.attempt == attempt]:
            self._end(request, error=code)

    def ended(self, requests: Iterable[Request]) -> None:
        """They are over here, or their phase is. Some may have ended before."""
        for request in requests:
            if request in self._open:
                self._end(request)

    def take(self) -> tuple[TracedPhase, ...]:
        """What is over since the last call."""
        if self._open:
            self.ended([request for request in self._open if request.state is RequestState.ENDED])
        told, self._told = tuple(self._told), []
        return told

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
        self._told.append(TracedPhase(request.trace, phase.name, phase.began, ended, details, error))


def _details(request: Request, phase: _OpenPhase, finish: Finish | None) -> dict[str, str | int]:
    if phase.name == "prefill":
        return {"input_tokens": request.prompt_len, "cached_tokens": request.cached_tokens}
    if phase.name != "decode":
        return {}
    made: dict[str, str | int] = {"choice": request.choice, "output_tokens": phase.tokens}
    return made if finish is None else {**made, "finish": finish}
