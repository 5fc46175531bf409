"""Counts what becomes of requests and workers, and makes the result of it."""

import itertools
from collections.abc import Mapping, Sequence

from legato_operator.policy import Slo
from legato_simulator.engine.request import SimulatedRequest
from legato_simulator.engine.result import Quantiles, Result, Sample
from legato_simulator.engine.scaler import Observation

REVERSAL = 600.0  # seconds
MOST_SAMPLES = 720


class Tally:
    """Of one run. Times in seconds; of requests that arrived before `since`, and of wishes then, nothing counts."""

    def __init__(self, slo: Slo, since: float = 0.0) -> None:
        self._slo, self._since = slo, since
        self.offered = self.finished = self.refused = self.good = 0
        self.requests = self.tokens = 0  # that arrived since the last sample
        self._ttft: list[float] = []
        self._tpot: list[float] = []
        self._sampled = 0.0
        self.timeline: list[Sample] = []
        self.wishes: list[tuple[float, Mapping[str, int]]] = []  # those that differ from the one before

    def arrived(self, request: SimulatedRequest) -> None:
        self.offered += request.arrival.at >= self._since
        self.requests += 1
        self.tokens += request.arrival.prompt

    def refuse(self, request: SimulatedRequest) -> None:
        """Nobody serves it."""
        self.refused += request.arrival.at >= self._since

    def ended(self, request: SimulatedRequest) -> None:
        """With all of its tokens."""
        if request.arrival.at < self._since:
            return
        self.finished += 1
        self._ttft.append(request.ttft)
        self._tpot.append(request.tpot)
        self.good += request.ttft <= self._slo.ttft and request.tpot <= self._slo.tpot

    def wished(self, now: float, sizes: Mapping[str, int]) -> None:
        if not self.wishes or self.wishes[-1][1] != sizes:
            self.wishes.append((now, dict(sizes)))

    def sample(self, seen: Observation, end: float) -> None:
        """What a scaler saw, once in a while: of a run that ends at `end`, no more than `MOST_SAMPLES`."""
        seconds, ended = seen.now - self._sampled, self.finished + self.refused
        if self.timeline and seconds < end / MOST_SAMPLES:
            return
        self.timeline.append(
            Sample(
                at=seen.now,
                arrivals_per_second=self.requests / seconds if seconds else 0.0,
                tokens_per_second=self.tokens / seconds if seconds else 0.0,
                queue_tokens=seen.queue_tokens,
                kv_usage=seen.kv_usage,
                wish=self.wishes[-1][1],
                ready=seen.ready,
                attainment_so_far=self.good / ended if ended else 1.0,
            )
        )
        self._sampled, self.requests, self.tokens = seen.now, 0, 0

    def result(self, scaler: str, workload: str, gpu_seconds: float, seconds: float) -> Result:
        """Of the whole run, of so many seconds."""
        return Result(
            scaler=scaler,
            workload=workload,
            attainment=self.good / self.offered if self.offered else 1.0,
            gpu_hours=gpu_seconds / 3600,
            ttft=quantiles(self._ttft),
            tpot=quantiles(self._tpot),
            reversals=reversals(self.wishes, self._since, seconds),
            timeline=tuple(self.timeline),
            offered=self.offered,
            finished=self.finished,
            refused=self.refused,
            unfinished=self.offered - self.finished - self.refused,
            seconds=seconds,
        )


def quantiles(seconds: Sequence[float]) -> Quantiles:
    """By nearest rank; all 0 of nothing."""
    ordered = sorted(seconds) or [0.0]
    return Quantiles(*(ordered[max(0, -(-len(ordered) * percent // 100) - 1)] for percent in (50, 90, 99)))


def reversals(wishes: Sequence[tuple[float, Mapping[str, int]]], since: float, until: float) -> dict[str, float]:
    """By pool and hour: changes opposite to the one before, less than 600 s after it."""
    hours = max(0.0, until - since) / 3600
    counts = {pool: _reversals(wishes, pool, since) for pool in wishes[0][1]} if wishes else {}
    return {pool: count / hours if hours else 0.0 for pool, count in counts.items()}


def _reversals(wishes: Sequence[tuple[float, Mapping[str, int]]], pool: str, since: float) -> int:
    moves = [(at, now[pool] - before[pool]) for (_, before), (at, now) in itertools.pairwise(wishes)]
    moves = [(at, by) for at, by in moves if by]
    pairs = itertools.pairwise(moves)
    return sum(by * before < 0 and at - then < REVERSAL and at >= since for (then, before), (at, by) in pairs)
