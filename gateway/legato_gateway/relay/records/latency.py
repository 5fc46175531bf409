"""Records latencies of requests and tokens in metrics and routes."""

from statistics import fmean

from legato_gateway.metrics.gateway_metrics import Metrics
from legato_gateway.relay.choice import OutputChoice
from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.timers import Timers
from legato_protocol.wire.stream import HandoffReport, Started


class LatencyRecorder:
    """Latencies of all requests of a gateway."""

    def __init__(self, metrics: Metrics, timers: Timers) -> None:
        self._metrics = metrics
        self._timers = timers

    def started(self, generation: RunningGeneration, frame: Started) -> None:
        """An attempt has its first part in a step of its worker."""
        generation.timing.started(frame.attempt, self._timers.time())

    def token(self, generation: RunningGeneration, choice: OutputChoice, known: int) -> None:
        """Records new tokens of `choice` after `known` ones. Called for every item, so it is short."""
        now = self._timers.time()
        if known:
            self._metrics.next_token(now - choice.last_at, known == 1)
        else:
            choice.first_at = now
            if generation.timing.first_token is None:
                self._first_token(generation, now)
        choice.last_at = now

    def handed_off(self, generation: RunningGeneration, report: HandoffReport) -> None:
        """A receiver committed its hand-off."""
        generation.timing.handed_off(report.attempt, report.boundary)
        self._phases(generation)

    def paused(self, generation: RunningGeneration) -> None:
        """Its client reads too slowly."""
        generation.paused_at = self._timers.time()

    def resumed(self, generation: RunningGeneration) -> None:
        """Its client reads again: the pause counts as the client's time, not the workers'."""
        now = self._timers.time()
        generation.timing.paused += now - generation.paused_at
        for choice in generation.choices:
            choice.exclude_pause(generation.paused_at, now)

    def ended(self, generation: RunningGeneration) -> None:
        """Records a request's totals. Metrics only count complete answers: truncated ones took less."""
        now, timing, seconds = self._timers.time(), generation.timing, generation.route.seconds
        total = seconds["total"] = now - timing.arrived
        if timing.first_token is not None:
            stream = timing.paused + (now - generation.paused_at if generation.paused else 0.0)
            seconds |= {"decode": now - timing.first_token - stream, "stream": stream}
        made = (choice.time_per_output_token for choice in generation.choices)
        per_token = [each for each in made if each is not None]
        if per_token:
            seconds["tpot"] = fmean(per_token)
        if not generation.unfinished:
            self._metrics.completed(total, per_token)

    def _first_token(self, generation: RunningGeneration, now: float) -> None:
        timing, usage = generation.timing, generation.usage
        timing.first_token = now
        generation.route.seconds["first_token"] = now - timing.arrived
        self._metrics.first_token(now - timing.arrived, usage.prompt_tokens, usage.cached_tokens)
        self._phases(generation)

    def _phases(self, generation: RunningGeneration) -> None:
        phases = generation.timing.phases()
        if phases is None:
            return
        named = {"queue": phases.queue, "prefill": phases.prefill, "handoff": phases.handoff}
        generation.route.seconds |= {name: seconds for name, seconds in named.items() if seconds is not None}
        self._metrics.phases(phases.queue, phases.prefill, phases.handoff)
