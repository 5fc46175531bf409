"""The main loop of a simulation: arrivals, events and passes of the operator.

An engine implements requests and events. Decisions, the plan, the count of GPUs and the result are common to all
engines. Results are deterministic.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from legato_engine.policy import BLOCK_SIZES, Profile, SequenceSizes, Speculated, max_running
from legato_operator.policy import DECIDE_EVERY, Slo, Spec, roles
from legato_protocol.settings import durations
from legato_simulator.engine.chunks import chunk_tokens
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
    """The input of one run: a service, the profile of its workers, and a workload. Times in seconds."""

    spec: Spec
    workload: Workload
    profile: Profile
    start: float | None = None  # from creation until a new worker serves; the profile's if None
    rate_error: float = 1.0  # reported prefill rate of workers ÷ the true one
    since: float = 0.0  # requests that arrived before do not count
    handoff_rate: float = math.inf  # tokens of KV per second that a worker can send, in the scheduler engine
    others: tuple[Profile, ...] = ()  # measured profiles of the same workers with other degrees
    objectives: Slo | None = None  # by which requests are judged; the manifest's if None

    def worker_profile(self, pool: str) -> Profile:
        """Returns the profile of a pool's workers, with their degree."""
        ranks = roles.ranks(self.spec, pool)
        return next((each for each in self.others if each.tensor == ranks), self.profile).of_degree(ranks)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence. The model's own limit is unknown, because simulations read no model."""
        most = min(self.worker_profile(pool).kv_tokens for pool in roles.with_pool(self.spec))
        size = self._block_size
        if self.profile.windows:
            most = SequenceSizes(size, self.profile.windows, chunk_tokens(self.spec)).largest(most // size)
        return min(self.spec.model.max_length or most, most)

    @property
    def _block_size(self) -> int:
        chosen = self.spec.engine.block_size
        return BLOCK_SIZES["cpu"] if chosen == "Auto" else chosen

    def kind(self, pool: str = roles.DECODE) -> WorkerKind:
        """Returns the properties that all workers of a pool share."""
        spec, profile = self.spec, self.worker_profile(pool)
        slots = spec.engine.max_running or max_running(profile.kv_tokens, self.longest)
        return WorkerKind(
            times=profile.step,
            kv_tokens=profile.kv_tokens,
            chunk_tokens=chunk_tokens(spec),
            block_size=self._block_size,
            tpot=spec.slo.tpot,
            slots=slots,
            prefix_block=self.workload.block,
            start=profile.start_seconds if self.start is None else self.start,
            rate_error=self.rate_error,
            windows=profile.windows,
            speculated=self._speculated(slots),
        )

    def _speculated(self, slots: int) -> Speculated | None:
        given = self.spec.engine.speculation
        if given is None or not self.profile.acceptance:
            return None
        return Speculated(given.tokens, self.profile.acceptance, max(slots, 1 + given.tokens))


class SimulationEngine(ABC, Generic[P]):
    """One run. Time is in seconds from the beginning of the workload."""

    pods: Pods[P]

    def __init__(self, run: RunSettings, scaler: Scaler) -> None:
        self._run, self._spec, self._scaler = run, run.spec, scaler
        self.kinds = {pool: run.kind(pool) for pool in roles.with_pool(run.spec)}
        self.tally = Tally(run.objectives or run.spec.slo, run.since)
        self._gpu_seconds = 0.0

    @property
    @abstractmethod
    def open(self) -> int:
        """Number of requests that neither ended nor were refused."""

    @abstractmethod
    def due(self) -> float:
        """Returns the time of the next event; infinite without one."""

    @abstractmethod
    def step(self) -> None:
        """Runs the next event."""

    @abstractmethod
    def arrive(self, request: SimulatedRequest, now: float) -> None:
        """Takes a request that has arrived."""

    @abstractmethod
    def observation(self, now: float) -> Observation:
        """Returns the scaler's input. Called once for every decision."""

    @abstractmethod
    def on_plan(self, deleted: Sequence[P], now: float) -> None:
        """Handles the workers that the plan deleted, and those that it started, drains or recalled."""

    def run(self, progress: Callable[[float], object] | None = None) -> Result:
        """Runs the workload until every request has ended, at most for the longest deadline after the last arrival.

        `progress` is called with the seconds of each step in simulated time. GPU-hours count up to the last arrival, so
        that the time which the last requests take does not affect them.
        """
        arrivals, number = self._run.workload.arrivals, 0
        seconds = arrivals[-1].at if arrivals else 0.0
        last, tick = seconds + durations.LONGEST, 0.0
        while number < len(arrivals) or (self.open and tick <= last):
            due = self.due()
            if number < len(arrivals) and arrivals[number].at < tick and arrivals[number].at <= due:
                request = SimulatedRequest(number, arrivals[number], arrivals[number].prompt)
                self.tally.arrive(request)
                self.arrive(request, arrivals[number].at)
                number += 1
            elif due < tick:
                self.step()
            else:
                self._pass(tick, seconds)
                if progress is not None and tick < seconds:
                    progress(min(DECIDE_EVERY, seconds - tick))
                tick += DECIDE_EVERY
        return self.tally.result(self._scaler.name, self._run.workload.name, self._gpu_seconds, seconds)

    def _pass(self, now: float, end: float) -> None:
        """Runs one pass of the operator: decide, plan, act."""
        seen = self.observation(now)
        self.pods.set_desired(self._scaler.sizes(seen))
        self.tally.set_desired(now, self.pods.desired)
        if now <= end:
            self.tally.sample(seen, end)
        self.on_plan(self.pods.reconcile(now), now)
        counted = min(now + DECIDE_EVERY, end) - max(now, self._run.since)
        self._gpu_seconds += self.pods.billed * max(0.0, counted)
