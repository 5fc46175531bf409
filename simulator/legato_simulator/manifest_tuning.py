"""Searches the bounds and the window of a manifest's `scaling` for attainment and GPU-hours.

These fields are a matter of budget: workers kept ready for a burst (`min`), the most that a burst may use (`max`), and
the time that they are kept (`scaleDownStabilization`). Objectives, ratio and GPU budget are not varied. The fields are
varied one after the other, starting from the choices on the Pareto front so far, so the front covers only the choices
tried.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing import get_context

from legato_operator.policy import Bounds, Spec, problems, roles
from legato_simulator.baselines.tuning import ATTAINMENT
from legato_simulator.engine.result import Result
from legato_simulator.simulator import ServiceSimulator
from legato_simulator.workload.workload import Workload

WINDOWS = (60.0, 300.0, 900.0, 1800.0, 3600.0)  # seconds of `scaleDownStabilization`
MIN_SHARES = (0.25, 0.5, 0.75, 0.95)  # quantiles of the desired sizes, for `min`
MAX_SHARES = (1.0, 0.75, 0.5)  # shares of the largest desired size, for `max`
MOST_VARIED = 6  # choices whose next field is varied


@dataclass(frozen=True)
class Choice:
    """One value for each searched field: bounds by pool, and the window in seconds."""

    bounds: tuple[tuple[str, int, int], ...]  # pool, min, max
    window: float

    @classmethod
    def from_spec(cls, spec: Spec) -> "Choice":
        """Returns the choice that a manifest makes."""
        known = {pool: roles.bounds(spec, pool) for pool in roles.with_pool(spec)}
        bounds = tuple((pool, known[pool].min, known[pool].max) for pool in sorted(known, reverse=True))
        return cls(bounds, spec.scaling.scale_down_stabilization)

    def spec(self, written: Spec) -> Spec:
        """Returns the manifest with this choice."""
        pools = {pool: Bounds(min=least, max=most) for pool, least, most in self.bounds}
        update = {**pools, "scale_down_stabilization": self.window}
        return written.model_copy(update={"scaling": written.scaling.model_copy(update=update)})

    def with_bound(self, pool: str, end: int, size: int) -> "Choice":
        """Returns the choice with another `min` (end 1) or `max` (end 2) of a pool."""
        changed = tuple(
            (each[0], *(size if i == end else each[i] for i in (1, 2))) if each[0] == pool else each
            for each in self.bounds
        )
        return dataclasses.replace(self, bounds=changed)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Trial:
    """The results of a choice on all workloads."""

    choice: Choice
    results: tuple[Result, ...]

    @cached_property
    def attainment(self) -> float:
        """The lowest attainment of all workloads."""
        return min(result.attainment for result in self.results)

    @cached_property
    def gpu_hours(self) -> float:
        """The sum over all workloads."""
        return sum(result.gpu_hours for result in self.results)


@dataclass(frozen=True)
class ManifestTuning:
    """All trials; the first is the manifest as written."""

    trials: tuple[Trial, ...]

    @property
    def front(self) -> tuple[Trial, ...]:
        """The trials that no other one beats, the cheapest first; of equals, the one tried first."""
        return _front(self.trials)

    @property
    def best(self) -> Trial:
        """The cheapest trial that reaches the attainment; if none does, the one with the highest."""
        enough = [trial for trial in self.front if trial.attainment >= ATTAINMENT]
        return enough[0] if enough else self.front[-1]


def tune(
    written: Spec,
    make: Callable[[Spec], ServiceSimulator],
    workloads: Sequence[Workload],
    jobs: int = 1,
    progress: Callable[[], object] = lambda: None,
) -> ManifestTuning:
    """Tries choices near the desired sizes of the manifest's own run. Deterministic."""
    search = _Search(written, make, workloads, jobs, progress)
    search.run()
    return ManifestTuning(tuple(search.tried.values()))


class _Search:
    def __init__(
        self,
        written: Spec,
        make: Callable[[Spec], ServiceSimulator],
        workloads: Sequence[Workload],
        jobs: int,
        progress: Callable[[], object],
    ) -> None:
        self._written, self._make, self._workloads = written, make, workloads
        self._jobs, self._progress = jobs, progress
        self.tried: dict[Choice, Trial] = {}

    def run(self) -> None:
        first = Choice.from_spec(self._written)
        self._try([first])
        desired = _desired_sizes(self.tried[first])
        self._vary(lambda choice: (dataclasses.replace(choice, window=window) for window in WINDOWS))
        for end, values in ((1, _mins), (2, _maxes)):
            for pool, least, most in first.bounds:
                sizes = values(desired[pool], least, most)
                self._vary(partial(_with_sizes, pool, end, sizes))

    def _vary(self, others: Callable[[Choice], Iterator[Choice]]) -> None:
        """Tries variations of choices that are spread evenly over the front."""
        front = _front(tuple(self.tried.values()))
        if len(front) > MOST_VARIED:
            front = tuple(front[i * (len(front) - 1) // (MOST_VARIED - 1)] for i in range(MOST_VARIED))
        self._try([other for trial in front for other in others(trial.choice)])

    def _try(self, choices: Sequence[Choice]) -> None:
        """Simulates the choices that are new and valid."""
        specs = {choice: choice.spec(self._written) for choice in choices if choice not in self.tried}
        new = [choice for choice, spec in specs.items() if not problems(spec)]
        tasks = [(self._make(specs[choice]), workload) for choice in new for workload in self._workloads]
        results = iter(self._results(tasks))
        for choice in new:
            self.tried[choice] = Trial(choice, tuple(itertools.islice(results, len(self._workloads))))

    def _results(self, tasks: Sequence[tuple[ServiceSimulator, Workload]]) -> Iterator[Result]:
        if self._jobs <= 1:
            yield from self._counted(map(_simulate, tasks))
            return
        with ProcessPoolExecutor(self._jobs, mp_context=get_context("fork")) as pool:  # leaves no process behind
            yield from self._counted(pool.map(_simulate, tasks))

    def _counted(self, results: Iterator[Result]) -> Iterator[Result]:
        for result in results:
            self._progress()
            yield result


def _simulate(task: tuple[ServiceSimulator, Workload]) -> Result:
    simulator, workload = task
    return simulator.simulate(workload, simulator.legato())


def _front(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    front: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: (trial.gpu_hours, -trial.attainment)):
        if not front or trial.attainment > front[-1].attainment:
            front.append(trial)
    return tuple(front)


def _desired_sizes(trial: Trial) -> Mapping[str, list[int]]:
    """Returns the desired sizes of each pool over time, in order of size."""
    samples = [sample for result in trial.results for sample in result.timeline]
    return {pool: sorted(sample.desired[pool] for sample in samples) for pool, _, _ in trial.choice.bounds}


def _mins(desired: Sequence[int], least: int, most: int) -> set[int]:
    """Returns values for `min`, from 1, or from 0 only if the manifest allows an empty pool."""
    quantiles = (desired[min(len(desired) - 1, int(share * len(desired)))] for share in MIN_SHARES)
    return {min(least, 1), *(min(max(size, 1), most) for size in quantiles)}


def _maxes(desired: Sequence[int], least: int, most: int) -> set[int]:
    """Returns values for `max`, up to the manifest's own."""
    return {most, *(max(1, round(share * desired[-1])) for share in MAX_SHARES)}


def _with_sizes(pool: str, end: int, sizes: set[int], choice: Choice) -> Iterator[Choice]:
    return (choice.with_bound(pool, end, size) for size in sorted(sizes))
