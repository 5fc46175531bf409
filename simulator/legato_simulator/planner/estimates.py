"""Estimates of a shape's use on a workload, which narrow the search and explain its result.

They know neither queues nor bursts nor `engine.speculation`. Without the latter, lasting traffic needs at least as
much, but not a short burst, part of which may queue within `slo.ttft`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from legato_engine.policy import Profile
from legato_operator.policy import Slo
from legato_protocol.step_target import STEP_TARGET
from legato_simulator.baselines.search_context import SearchContext
from legato_simulator.baselines.tuning import ATTAINMENT
from legato_simulator.planner.shape import PoolLayout, PoolShape
from legato_simulator.workload.workload import Arrival


@dataclass(frozen=True)
class DegreeEstimate:
    """The work of a workload on workers of one degree."""

    context: SearchContext
    slo: Slo
    longest: int  # tokens of the longest sequence that a worker takes

    @property
    def profile(self) -> Profile:
        return self.context.profile

    @property
    def prefill(self) -> float:
        """Workers that prompts keep busy."""
        return self.context.rate / self.context.prefill_rate

    @property
    def decode(self) -> float:
        """Workers that answers keep full."""
        return self.context.rate / self.context.decode_rate

    @property
    def prompt_share(self) -> float:
        """Share of the compute that prompts take, 0 to 1."""
        return self.prefill / (self.prefill + self.decode)

    @property
    def _arrivals(self) -> Sequence[Arrival]:
        return [arrival for arrival, _ in self.context.counted]

    def first_tokens(self, chunk: int) -> Sequence[tuple[float, int, int]]:
        """Seconds to the first token on an idle worker, uncached and cached tokens of each prompt, slowest first."""
        parts = [(tokens, each.prompt - tokens) for each, tokens in self.context.counted]
        return sorted(((self.idle_seconds(chunk, *part), *part) for part in parts), reverse=True)

    def idle_seconds(self, chunk: int, tokens: int, cached: int = 0) -> float:
        """Returns the seconds of one prompt on an idle worker, in chunks."""
        steps = -(-tokens // chunk)
        return self.context.prefill_seconds(tokens, cached) + (steps - 1) * self.profile.step.per_step

    @property
    def too_long(self) -> int:
        """Number of requests that exceed a worker's memory or `model.maxLength`."""
        return sum(arrival.prompt + arrival.output > self.longest for arrival in self._arrivals)

    def room(self, rows: float) -> tuple[float, int]:
        """Returns the seconds of a step that decodes `rows` sequences, and the prompt tokens that `slo.tpot` leaves."""
        step = self.profile.step
        seconds = step.per_step + rows * (step.per_row + step.per_context * self.context.context)
        return seconds, max(0, int((STEP_TARGET * self.slo.tpot - seconds) / (step.per_token or 1e-12)))

    def unmet(self, chunk: int) -> str | None:
        """Returns the reason why these workers, however many, miss the attainment, with the arithmetic, or None."""
        return self._unmet_memory() or self._unmet_tpot() or self._unmet_ttft(chunk)

    def _unmet_memory(self) -> str | None:
        count = len(self._arrivals)
        if self.too_long <= (1 - ATTAINMENT) * count:
            return None
        longest = max(arrival.prompt + arrival.output for arrival in self._arrivals)
        return (
            f"{self.too_long} of {count} requests are longer than the {self.longest} tokens that a worker takes "
            f"(kvTokens of the profile, or model.maxLength); the longest has {longest}"
        )

    def _unmet_tpot(self) -> str | None:
        # Answers of one token have no time per later token.
        contexts = sorted(each.prompt + each.output / 2 for each in self._arrivals if each.output > 1)
        missing = int((1 - ATTAINMENT) * len(self._arrivals))  # requests that may miss it
        if self.profile.acceptance or len(contexts) <= missing:
            return None  # drafts may make tokens faster than steps, or too few answers have later tokens
        step, context = self.profile.step, contexts[-1 - missing]
        seconds = step.per_step + step.per_row + step.per_context * context
        if seconds <= self.slo.tpot:
            return None
        return (
            f"slo.tpot is {ms(self.slo.tpot)}, but a decode step of one sequence with {context:.0f} tokens takes "
            f"{ms(seconds)} ({ms(step.per_step)} a step + {ms(step.per_row)} a sequence + "
            f"{ms(step.per_context * context)} for its context)"
        )

    def _unmet_ttft(self, chunk: int) -> str | None:
        times = self.first_tokens(chunk)
        seconds, tokens, cached = times[int((1 - ATTAINMENT) * len(times))]
        if seconds <= self.slo.ttft:
            return None
        step, steps = self.profile.step, -(-tokens // chunk)
        late = sum(each > self.slo.ttft for each, _, _ in times)
        return (
            f"slo.ttft is {ms(self.slo.ttft)}, but {late / len(times):.0%} of the prompts take longer on an idle "
            f"worker: {tokens} uncached tokens after {cached} cached ones take {ms(seconds)} ({steps} x "
            f"{ms(step.per_step)} a step + {ms(step.per_token * tokens)} of tokens + "
            f"{ms(step.per_pair * tokens * (cached + (tokens + 1) / 2))} of attention)"
        )


@dataclass(frozen=True)
class Estimates:
    """The estimates of each degree that has a profile."""

    degrees: Mapping[int, DegreeEstimate]

    def use(self, shape: PoolShape) -> float:
        """Returns the largest share of its pool that a kind of work takes; above 1, the pool cannot keep up."""
        layout = shape.layout
        decode = self.degrees[layout.decode]
        if layout.unified:
            return (decode.prefill + decode.decode) / shape.decode
        return max(self.degrees[layout.prefill].prefill / shape.prefill, decode.decode / shape.decode)

    def unmet(self, layout: PoolLayout, chunk: int) -> str | None:
        """Returns the reason why workers in this layout, however many, miss the attainment, or None."""
        decode = self.degrees[layout.decode]
        if layout.unified:
            return decode.unmet(chunk)
        prefill = self.degrees[layout.prefill]
        return prefill._unmet_memory() or decode._unmet_memory() or decode._unmet_tpot() or prefill._unmet_ttft(chunk)


def ms(seconds: float) -> str:
    """Formats a duration in seconds or milliseconds."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1000:.3g} ms"
