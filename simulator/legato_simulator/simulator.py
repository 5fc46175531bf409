"""A service that either engine can simulate any number of times."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from legato_engine.policy import Profile
from legato_operator.policy import Bounds, Slo, Spec, roles
from legato_simulator.baselines.search_context import SearchContext
from legato_simulator.engine.engine import RunSettings, SimulationEngine
from legato_simulator.engine.fluid.engine import FluidEngine
from legato_simulator.engine.pods import POOLS
from legato_simulator.engine.result import Result
from legato_simulator.engine.scaler import LegatoScaler, Scaler
from legato_simulator.engine.scheduler.engine import SchedulerEngine
from legato_simulator.workload.workload import Workload

ENGINES: Mapping[str, Callable[[RunSettings, Scaler], SimulationEngine[Any]]] = {
    "fluid": FluidEngine,
    "scheduler": SchedulerEngine,
}


@dataclass(frozen=True)
class ServiceSimulator:
    """One service in virtual time. Picklable without `progress`, because workloads are simulated in several processes.

    Pools begin with the manifest's initial sizes, with all workers ready.
    """

    spec: Spec
    profile: Profile
    start: float | None = None  # seconds until a new worker serves; the profile's if None
    since: float = 0.0  # seconds: earlier arrivals do not count in the results
    engine: str = "fluid"  # one of ENGINES
    handoff_rate: float = math.inf  # tokens of KV per second that a worker can send, in the scheduler engine
    progress: Callable[[float], object] | None = None  # called with the simulated seconds, as they pass
    others: tuple[Profile, ...] = ()  # measured profiles of the same workers with other degrees
    objectives: Slo | None = None  # by which requests are judged; the manifest's if None

    def simulate(self, workload: Workload, scaler: Scaler) -> Result:
        """Runs one workload under one new scaler."""
        return ENGINES[self.engine](self.run_settings(workload), scaler).run(self.progress)

    def run_settings(self, workload: Workload) -> RunSettings:
        """Returns the input of a run of this workload."""
        return RunSettings(
            self.spec,
            workload,
            self.profile,
            self.start,
            since=self.since,
            handoff_rate=self.handoff_rate,
            others=self.others,
            objectives=self.objectives,
        )

    def legato(self) -> Scaler:
        """Returns a scaler that decides as the operator does."""
        return LegatoScaler(self.spec)

    def search_context(self, workload: Workload) -> SearchContext:
        """Returns the estimates from which baselines make their grids."""
        most: dict[str, int] = {POOLS[pool]: roles.bounds(self.spec, pool).max for pool in roles.with_pool(self.spec)}
        run = self.run_settings(workload)
        if self.start is not None:
            run = dataclasses.replace(run, profile=msgspec.structs.replace(self.profile, start_seconds=self.start))
        decode, slots = run.worker_profile(roles.DECODE), run.kind().slots
        return SearchContext(workload, decode, self.spec.slo.ttft, self.spec.slo.tpot, most, slots)

    def unified(self) -> "ServiceSimulator":
        """Returns the service with one pool of unified workers, as large as both pools may be."""
        scaling = self.spec.scaling
        decode = Bounds(min=scaling.decode.min, max=scaling.prefill.max + scaling.decode.max)
        scaling = scaling.model_copy(update={"prefill": Bounds(min=0, max=0), "decode": decode})
        return dataclasses.replace(self, spec=self.spec.model_copy(update={"scaling": scaling}))
