"""Counts requests and desired sizes of a run, and returns its result."""

import itertools
from collections.abc import Mapping, Sequence

from legato_operator.policy import Slo
from legato_simulator.engine.request import SimulatedRequest
from legato_simulator.engine.result import Quantiles, Result, Sample
from legato_simulator.engine.scaler import Observation

REVERSAL = 600.0  # seconds
MOST_SAMPLES = 720


class Tally:
    """The counts of one run. Times in seconds; requests and changes before `since` do not count."""

    def __init__(self, slo: Slo, since: float = 0.0) -> None:
        self._slo, self._since = slo, since
        self.offered = self.finished = self.refused = self.good = self.missed_ttft = self.missed_tpot = 0
        self.requests = self.tokens = 0  # arrivals since the last sample
        self._ttft: list[float] = []
        self._tpot: list[float] = []
        self._sampled = 0.0
        self.timeline: list[Sample] = []
        self.desired: list[tuple[float, Mapping[str, int]]] = []  # changes, with their times

    def arrive(self, request: SimulatedRequest) -> None:
        self.offered += request.arrival.at >= self._since
        self.requests += 1
        self.tokens += request.arrival.prompt

    def refuse(self, request: SimulatedRequest) -> None:
        """Counts a request that nobody serves."""
        self.refused += request.arrival.at >= self._since

    def finish(self, request: SimulatedRequest) -> None:
        """Counts a request that has all of its tokens."""
        if request.arrival.at < self._since:
            return
        self.finished += 1
        self._ttft.append(request.ttft)
        self._tpot.append(request.tpot)
        in_time, steady = request.ttft <= self._slo.ttft, request.tpot <= self._slo.tpot
        self.missed_ttft += not in_time
        self.missed_tpot += not steady
        self.good += in_time and steady

    def set_desired(self, now: float, sizes: Mapping[str, int]) -> None:
        if not self.desired or self.desired[-1][1] != sizes:
            self.desired.append((now, dict(sizes)))

    def sample(self, seen: Observation, end: float) -> None:
        """Adds a scaler's input to the timeline: at most `MOST_SAMPLES`, evenly spaced until `end`."""
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
                desired=self.desired[-1][1],
                ready=seen.ready,
                attainment_so_far=self.good / ended if ended else 1.0,
            )
        )
        self._sampled, self.requests, self.tokens = seen.now, 0, 0

    def result(self, scaler: str, workload: str, gpu_seconds: float, seconds: float) -> Result:
        """Returns the result of the whole run, which took `seconds`."""
        return Result(
            scaler=scaler,
            workload=workload,
            attainment=self.good / self.offered if self.offered else 1.0,
            gpu_hours=gpu_seconds / 3600,
            ttft=quantiles(self._ttft),
            tpot=quantiles(self._tpot),
            reversals=reversals(self.desired, self._since, seconds),
            timeline=tuple(self.timeline),
            offered=self.offered,
            finished=self.finished,
            missed_ttft=self.missed_ttft,
            missed_tpot=self.missed_tpot,
            refused=self.refused,
            unfinished=self.offered - self.finished - self.refused,
            seconds=seconds,
        )


def quantiles(seconds: Sequence[float]) -> Quantiles:
    """Returns quantiles by nearest rank; 0 without values."""
    ordered = sorted(seconds) or [0.0]
    return Quantiles(*(ordered[max(0, -(-len(ordered) * percent // 100) - 1)] for percent in (50, 90, 99)))


def reversals(sizes: Sequence[tuple[float, Mapping[str, int]]], since: float, until: float) -> dict[str, float]:
    """Returns, by pool and per hour, the changes opposite to the previous one and less than 600 s after it."""
    hours = max(0.0, until - since) / 3600
    counts = {pool: _reversals(sizes, pool, since) for pool in sizes[0][1]} if sizes else {}
    return {pool: count / hours if hours else 0.0 for pool, count in counts.items()}


def _reversals(sizes: Sequence[tuple[float, Mapping[str, int]]], pool: str, since: float) -> int:
    moves = [(at, now[pool] - before[pool]) for (_, before), (at, now) in itertools.pairwise(sizes)]
    moves = [(at, by) for at, by in moves if by]
    pairs = itertools.pairwise(moves)
    return sum(by * before < 0 and at - then < REVERSAL and at >= since for (then, before), (at, by) in pairs)
