"""Estimates of a worker's throughput on a workload, from which grids of settings are made.

A grid extends around the estimate from far too generous to far too frugal, because the estimate includes neither queues
nor bursts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from legato_engine.policy import Profile
from legato_simulator.workload.workload import Arrival, Workload


@dataclass(frozen=True)
class SearchContext:
    """A service and its workload."""

    workload: Workload
    profile: Profile
    ttft: float  # objectives, seconds
    tpot: float
    most: Mapping[str, int]  # `max` of each pool
    slots: int  # sequences that a worker decodes concurrently
    since: float = 0.0  # seconds: earlier arrivals only fill caches

    @cached_property
    def counted(self) -> tuple[tuple[Arrival, int], ...]:
        """Arrivals from `since` on, each with its uncached prompt tokens."""
        pairs = zip(self.workload.arrivals, self.uncached, strict=True)
        return tuple((arrival, tokens) for arrival, tokens in pairs if arrival.at >= self.since)

    @cached_property
    def rate(self) -> float:
        """Mean requests per second."""
        return len(self.counted) / max(1.0, self.workload.arrivals[-1].at - self.since)

    @property
    def outputs(self) -> float:
        """Mean tokens of an answer."""
        return sum(arrival.output for arrival, _ in self.counted) / len(self.counted)

    @cached_property
    def uncached(self) -> tuple[int, ...]:
        """Prompt tokens of each request that an unlimited prefix cache would miss."""
        seen: set[int] = set()
        uncached = []
        for arrival in self.workload.arrivals:
            uncached.append(max(1, arrival.prompt - self._cached(arrival, seen)))
            seen.update(arrival.blocks)
        return tuple(uncached)

    def _cached(self, arrival: Arrival, seen: set[int]) -> int:
        count = next((i for i, block in enumerate(arrival.blocks) if block not in seen), len(arrival.blocks))
        return count * self.workload.block

    def prefill_seconds(self, tokens: float, cached: float = 0.0) -> float:
        """Returns the seconds to compute one prompt in a single step, without other work."""
        step = self.profile.step
        return step.per_step + tokens * (step.per_token + step.per_pair * (cached + (tokens + 1) / 2))

    @cached_property
    def prefill_rate(self) -> float:
        """Requests per second that keep one prefill worker always busy."""
        work = sum(self.prefill_seconds(tokens, arrival.prompt - tokens) for arrival, tokens in self.counted)
        return len(self.counted) / work

    @cached_property
    def peak_prefill(self) -> float:
        """Prompt tokens per second of one worker in full steps of 8,192 tokens."""
        return 8192 / self.prefill_seconds(8192)

    @cached_property
    def context(self) -> float:
        """Mean tokens of a decoding sequence, weighted by output length."""
        outputs = sum(arrival.output for arrival, _ in self.counted)
        return sum((arrival.prompt + arrival.output / 2) * arrival.output for arrival, _ in self.counted) / outputs

    @cached_property
    def rows(self) -> float:
        """Concurrent sequences of one decode worker whose steps still meet the objective."""
        step = self.profile.step
        in_time = (self.tpot - step.per_step) / (step.per_row + step.per_context * self.context or 1e-12)
        return max(1.0, min(in_time, self.profile.kv_tokens / self.context, self.slots))

    @cached_property
    def full(self) -> float:
        """KV usage of a decode worker with `rows` sequences, 0 to 1."""
        return min(1.0, self.rows * self.context / self.profile.kv_tokens)

    @cached_property
    def decode_rate(self) -> float:
        """Requests per second that keep one decode worker full."""
        step = self.profile.step
        seconds = step.per_step + self.rows * (step.per_row + step.per_context * self.context)
        return self.rows / (self.outputs * seconds)


def spread(low: float, high: float, count: int) -> tuple[float, ...]:
    """Returns `count` values from `low` to `high` in a geometric progression."""
    return tuple(low * (high / low) ** (i / (count - 1)) for i in range(count))
