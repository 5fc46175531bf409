"""What serves a workload in virtual time, and the course of every run: arrivals, events and looks of the operator.

An engine says what a request and an event do. Decisions, the plan, the count of GPUs and the result are the same for
all. Same input, same result.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from legato_engine.policy import BLOCK_SIZES, Profile, max_running
from legato_operator.policy import DECIDE_EVERY, Spec
from legato_protocol import durations
from legato_simulator.engine import chunks
from legato_simulator.engine.pods import Pods
from legato_simulator.engine.request import SimulatedRequest
from legato_simulator.engine.result import Result
from legato_simulator.engine.scaler import Observation, Scaler
from legato_simulator.engine.simulated_pod import SimulatedPod, WorkerKind
from legato_simulator.engine.tally import Tally
from legato_simulator.workload.workload import Workload

P = TypeVar("P", bound=SimulatedPod)


@dataclass(frozen=True)
class RunSettings:
    """One run: a service, what its workers can do, and what arrives. Times in seconds."""

    spec: Spec
    workload: Workload
    profile: Profile
    start: float | None = None  # that a worker takes to serve; the profile's if None
    told: float = 1.0  # the prefill rate that workers tell ÷ the true one
    since: float = 0.0  # from which on results count
    handoff_rate: float = math.inf  # tokens of KV per second that leave a worker, where an engine simulates it

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence. The model's own limit is unknown, since simulations read no model."""
        return min(self.spec.model.max_length or self.profile.kv_tokens, self.profile.kv_tokens)

    def kind(self) -> WorkerKind:
        """What all workers are."""
        spec, profile = self.spec, self.profile
        return WorkerKind(
            times=profile.step,
            kv_tokens=profile.kv_tokens,
            chunk_tokens=chunks.of(spec),
            block_size=BLOCK_SIZES["cpu"] if spec.engine.block_size == "Auto" else spec.engine.block_size,
            tpot=spec.slo.tpot,
            slots=spec.engine.max_running or max_running(profile.kv_tokens, self.longest),
            prefix_block=self.workload.block,
            start=profile.start_seconds if self.start is None else self.start,
            told=self.told,
        )


class Engine(ABC, Generic[P]):
    """One run. Time is in seconds from the beginning of the workload."""

    pods: Pods[P]

    def __init__(self, run: RunSettings, scaler: Scaler) -> None:
        self._run, self._spec, self._scaler = run, run.spec, scaler
        self.kind = run.kind()
        self.tally = Tally(run.spec.slo, run.since)
        self._gpu_seconds = 0.0

    @property
    @abstractmethod
    def open(self) -> int:
        """Requests that neither ended nor were refused."""

    @abstractmethod
    def due(self) -> float:
        """When the next event is; infinite without one."""

    @abstractmethod
    def happens(self) -> None:
        """What is due."""

    @abstractmethod
    def arrive(self, request: SimulatedRequest, now: float) -> None:
        """A request comes, as the tally knows."""

    @abstractmethod
    def observation(self, now: float) -> Observation:
        """What a scaler sees, once for every decision."""

    @abstractmethod
    def planned(self, gone: Sequence[P], now: float) -> None:
        """The plan was carried out: workers may have begun to drain, be recalled or started, and these are deleted."""

    def run(self, progress: Callable[[float], None] | None = None) -> Result:
        """Runs the whole workload, and on until every request has ended: without a token, it ends at its deadline.
        `progress` is called with the simulated seconds that have passed.

        GPU-hours count up to the last arrival, so that they compare however long the rest takes.
        """
        arrivals, at = self._run.workload.arrivals, 0
        seconds = arrivals[-1].at if arrivals else 0.0
        last, tick = seconds + durations.LONGEST, 0.0
        while at < len(arrivals) or (self.open and tick <= last):
            due = self.due()
            if at < len(arrivals) and arrivals[at].at < tick and arrivals[at].at <= due:
                request = SimulatedRequest(at, arrivals[at], arrivals[at].prompt)
                self.tally.arrived(request)
                self.arrive(request, arrivals[at].at)
                at += 1
            elif due < tick:
                self.happens()
            else:
                self._look(tick, seconds)
                if progress is not None and tick < seconds:
                    progress(min(DECIDE_EVERY, seconds - tick))
                tick += DECIDE_EVERY
        return self.tally.result(self._scaler.name, self._run.workload.name, self._gpu_seconds, seconds)

    def _look(self, now: float, end: float) -> None:
        """One look of the operator: decide, plan, act."""
        seen = self.observation(now)
        self.pods.wish(self._scaler.sizes(seen))
        self.tally.wished(now, self.pods.desired)
        if now <= end:
            self.tally.sample(seen, end)
        self.planned(self.pods.reconcile(now), now)
        counted = min(now + DECIDE_EVERY, end) - max(now, self._run.since)
        self._gpu_seconds += self.pods.billed * max(0.0, counted)
