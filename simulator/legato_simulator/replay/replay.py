"""Replays recorded signals with another manifest, through `decide` and the limits.

Nothing reacts: the signals belong to the recorded sizes. The sums over all workers (arrivals, queues, KV in use,
sequences) and the capacity of one worker are used as recorded, so terms made of both hold for any size with which the
service keeps up. Queues that other sizes would have caused are unknown.
"""

import datetime
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from legato_operator.policy import LONGEST_GAP, Signals, Spec, Window, decide, limits, record, roles
from legato_simulator.engine.result import Sample
from legato_simulator.replay.signal_round import SignalRound
from legato_simulator.replay.tally import PoolReplay, PoolTally, Stretch

MOST_SAMPLES = 1440  # in the timeline

Sizes = Mapping[str, int]


class UnusableReplay(ValueError):
    """The recording does not fit the manifest. The text has the reason."""


@dataclass(frozen=True)
class Moment:
    """One round, with sizes after the limits."""

    recorded: Sample  # `desired` are the recorded sizes
    replayed: Sizes
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class Replay:
    """The result of a replay. Times in seconds from the first round."""

    service: str
    begin: float  # seconds since the epoch
    rounds: int
    seconds: float  # counted time: between rounds, without gaps
    gaps: tuple[tuple[float, float], ...]  # periods without a round
    blind: int  # rounds with unknown traffic
    pools: Mapping[str, PoolReplay]
    recorded_gpu_hours: float  # with the GPUs of the replayed manifest; worker-hours if workers have none
    gpu_hours: float
    differences: tuple[Stretch, ...]  # in order of time
    changes: tuple[Mapping[str, Any], ...]  # as in `status.scaling.records`
    timeline: tuple[Moment, ...]


def replay(rounds: Iterable[SignalRound], spec: Spec, progress: Callable[[], object] = lambda: None) -> Replay:
    """Replays all rounds. Raises UnusableReplay, and the errors of `rounds`."""
    if spec.scaling.mode == "Fixed":
        raise UnusableReplay("spec.scaling.mode is Fixed: there is nothing to decide (use Managed)")
    replayer: _Replayer | None = None
    for each in rounds:
        replayer = replayer or _Replayer(spec, each)
        replayer.add(each)
        progress()
    if replayer is None:
        raise UnusableReplay("no rounds")
    return replayer.result()


class _Replayer:
    def __init__(self, spec: Spec, first: SignalRound) -> None:
        self._spec, self._first = spec, first
        self._desired: dict[str, int] = dict(first.desired)
        self._windows: Mapping[str, Window] = {}
        self._pools = {pool: PoolTally(pool) for pool in roles.with_pool(spec)}
        self._rounds = self._blind = 0
        self._at = self._seconds = 0.0  # time of the last round; counted time
        self._gaps: list[tuple[float, float]] = []
        self._changes: list[Mapping[str, Any]] = []
        self._timeline = _Timeline()

    def add(self, each: SignalRound) -> None:
        if set(each.desired) != set(self._pools):
            raise UnusableReplay(
                f"the recording has the pools {_named(each.desired)} at {_timestamp(each.time)}, "
                f"and the manifest {_named(self._pools)}: signals of one kind say nothing about the other"
            )
        at = each.time - self._first.time
        self._pass(at)
        decision = decide(each.signals, self._windows, self._spec, self._desired, each.time)
        self._windows = decision.windows
        for made in decision.pools.values():
            if made.changes:
                self._changes.append({"pool": made.pool, **record.entry(made, _timestamp(each.time))})
        self._desired = {pool: made.desired for pool, made in decision.pools.items()}
        targets = limits.targets(self._spec, self._desired)
        reasons: dict[str, str] = {}
        for pool, made in decision.pools.items():
            cap = targets[pool].capped_by or made.capped_by
            reasons[pool] = f"{made.reason}, capped by {cap}" if cap else made.reason
            tally, size = self._pools[pool], targets[pool].replicas
            tally.decide(at, each.targets[pool], size, reasons[pool], each.reasons.get(pool, ""))
        self._rounds += 1
        self._blind += each.signals.traffic is None
        sizes = {pool: target.replicas for pool, target in targets.items()}
        self._timeline.add(Moment(_sample(at, each), sizes, reasons))

    def _pass(self, at: float) -> None:
        """Counts the time since the last round with its sizes, unless it is a gap."""
        if self._rounds and at - self._at > LONGEST_GAP:
            self._gaps.append((self._at, at))
            for tally in self._pools.values():
                tally.interrupt(self._at)
        elif self._rounds:
            self._seconds += at - self._at
            for tally in self._pools.values():
                tally.advance(at - self._at)
        self._at = at

    def result(self) -> Replay:
        for tally in self._pools.values():
            tally.interrupt(self._at)
        pools = {pool: tally.result(self._seconds) for pool, tally in sorted(self._pools.items(), reverse=True)}
        gpus = {pool: roles.gpus(self._spec, pool) or 1 for pool in pools}
        stretches = [stretch for tally in self._pools.values() for stretch in tally.differences]
        return Replay(
            service=f"{self._first.namespace}/{self._first.service}",
            begin=self._first.time,
            rounds=self._rounds,
            seconds=self._seconds,
            gaps=tuple(self._gaps),
            blind=self._blind,
            pools=pools,
            recorded_gpu_hours=sum(each.recorded_hours * gpus[pool] for pool, each in pools.items()),
            gpu_hours=sum(each.hours * gpus[pool] for pool, each in pools.items()),
            differences=tuple(sorted(stretches, key=lambda each: (each.since, each.pool))),
            changes=tuple(self._changes),
            timeline=self._timeline.moments,
        )


class _Timeline:
    """Evenly spaced moments, at most `MOST_SAMPLES` for a recording of any length."""

    def __init__(self) -> None:
        self._kept: list[Moment] = []
        self._every, self._seen = 1, 0

    def add(self, moment: Moment) -> None:
        if self._seen % self._every == 0:
            self._kept.append(moment)
            if len(self._kept) > MOST_SAMPLES:
                self._kept, self._every = self._kept[::2], 2 * self._every
        self._seen += 1

    @property
    def moments(self) -> tuple[Moment, ...]:
        return tuple(self._kept)


def _sample(at: float, each: SignalRound) -> Sample:
    traffic = each.signals.traffic
    recent = traffic.recent if traffic is not None else ()
    seconds = traffic.recent_seconds if traffic is not None else 1.0
    queued = traffic.queued_tokens if traffic is not None else 0
    return Sample(
        at=at,
        arrivals_per_second=sum(bucket.requests for bucket in recent) / seconds,
        tokens_per_second=sum(bucket.tokens for bucket in recent) / seconds,
        queue_tokens=queued + sum(worker.queue_tokens or 0 for worker in each.signals.workers),
        kv_usage=_kv_usage(each.signals),
        desired=each.targets,
        ready={pool: _ready(each.signals, pool) for pool in each.targets},
        attainment_so_far=1.0,
    )


def _ready(signals: Signals, pool: str) -> int:
    return sum(worker.ready and not worker.draining and worker.pool == pool for worker in signals.workers)


def _kv_usage(signals: Signals) -> float:
    blocks = [worker.blocks for worker in signals.of_pool("decode") if worker.blocks is not None]
    total = sum(each.total for each in blocks)
    return sum(each.used for each in blocks) / total if total else 0.0


def _named(pools: Iterable[str]) -> str:
    return " and ".join(sorted(pools, reverse=True))


def _timestamp(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat().replace("+00:00", "Z")
