"""Searches the bounds and the window of a manifest's `scaling`: what attainment can be had for how many GPU-hours.

These fields are a matter of budget: how much is kept ready for a burst (`min`), how much may be spent on one (`max`),
and for how long (`scaleDownStabilization`). Objectives, ratio and GPU budget stay. One field after the other is varied
for the choices that no other one beats so far, so the front is that of the choices tried, not of all.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing import get_context

from legato_operator.policy import Bounds, Spec, problems, roles
from legato_simulator.baselines.comparison import Simulator
from legato_simulator.baselines.tuning import ATTAINMENT
from legato_simulator.engine.result import Result
from legato_simulator.workload.workload import Workload

WINDOWS = (60.0, 300.0, 900.0, 1800.0, 3600.0)  # seconds of `scaleDownStabilization`
MIN_SHARES = (0.25, 0.5, 0.75, 0.95)  # quantiles of what was wished, for `min`
MAX_SHARES = (1.0, 0.75, 0.5)  # of the most that was wished, for `max`
MOST_VARIED = 6  # choices whose next field is varied


@dataclass(frozen=True)
class Choice:
    """Of the fields that are searched. Bounds by pool, seconds."""

    bounds: tuple[tuple[str, int, int], ...]  # pool, min, max
    window: float

    @classmethod
    def of(cls, spec: Spec) -> "Choice":
        """As a manifest has it."""
        known = {pool: roles.bounds(spec, pool) for pool in roles.with_pool(spec)}
        bounds = tuple((pool, known[pool].min, known[pool].max) for pool in sorted(known, reverse=True))
        return cls(bounds, spec.scaling.scale_down_stabilization)

    def spec(self, written: Spec) -> Spec:
        """The manifest with this choice."""
        pools = {pool: Bounds(min=least, max=most) for pool, least, most in self.bounds}
        update = {**pools, "scale_down_stabilization": self.window}
        return written.model_copy(update={"scaling": written.scaling.model_copy(update=update)})

    def with_bound(self, pool: str, end: int, size: int) -> "Choice":
        """With another `min` (end 1) or `max` (end 2) of a pool."""
        changed = tuple(
            (each[0], *(size if i == end else each[i] for i in (1, 2))) if each[0] == pool else each
            for each in self.bounds
        )
        return dataclasses.replace(self, bounds=changed)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Trial:
    """What a choice came to, on all workloads."""

    choice: Choice
    results: tuple[Result, ...]

    @cached_property
    def attainment(self) -> float:
        """Of the workload on which it is the lowest."""
        return min(result.attainment for result in self.results)

    @cached_property
    def gpu_hours(self) -> float:
        """Of all workloads together."""
        return sum(result.gpu_hours for result in self.results)

    def beats(self, other: "Trial") -> bool:
        """At least as good in both, and better in one."""
        no_worse = self.attainment >= other.attainment and self.gpu_hours <= other.gpu_hours
        return no_worse and (self.attainment, self.gpu_hours) != (other.attainment, other.gpu_hours)


@dataclass(frozen=True)
class ManifestTuning:
    """All trials; the first is the manifest as written."""

    trials: tuple[Trial, ...]

    @property
    def front(self) -> tuple[Trial, ...]:
        """Those that no other one beats, the cheapest first; of equals the one tried first."""
        return _front(self.trials)

    @property
    def best(self) -> Trial:
        """The fewest GPU-hours with the attainment; without one, the highest attainment."""
        enough = [trial for trial in self.front if trial.attainment >= ATTAINMENT]
        return enough[0] if enough else self.front[-1]


def tune(
    written: Spec,
    make: Callable[[Spec], Simulator],
    workloads: Sequence[Workload],
    jobs: int = 1,
    progress: Callable[[], None] = lambda: None,
) -> ManifestTuning:
    """Tries choices near what the manifest's own run asked for. Same arguments, same trials."""
    search = _Search(written, make, workloads, jobs, progress)
    search.run()
    return ManifestTuning(tuple(search.tried.values()))


class _Search:
    def __init__(
        self,
        written: Spec,
        make: Callable[[Spec], Simulator],
        workloads: Sequence[Workload],
        jobs: int,
        progress: Callable[[], None],
    ) -> None:
        self._written, self._make, self._workloads = written, make, workloads
        self._jobs, self._progress = jobs, progress
        self.tried: dict[Choice, Trial] = {}

    def run(self) -> None:
        first = Choice.of(self._written)
        self._try([first])
        wishes = _wishes(self.tried[first])
        self._vary(lambda choice: (dataclasses.replace(choice, window=window) for window in WINDOWS))
        for end, values in ((1, _mins), (2, _maxes)):
            for pool, least, most in first.bounds:
                sizes = values(wishes[pool], least, most)
                self._vary(partial(_with_sizes, pool, end, sizes))

    def _vary(self, others: Callable[[Choice], Iterator[Choice]]) -> None:
        """Of choices on the front, spread evenly over it."""
        front = _front(tuple(self.tried.values()))
        if len(front) > MOST_VARIED:
            front = tuple(front[i * (len(front) - 1) // (MOST_VARIED - 1)] for i in range(MOST_VARIED))
        self._try([other for trial in front for other in others(trial.choice)])

    def _try(self, choices: Sequence[Choice]) -> None:
        """Those that are new and allowed."""
        specs = {choice: choice.spec(self._written) for choice in choices if choice not in self.tried}
        new = [choice for choice, spec in specs.items() if not problems(spec)]
        tasks = [(self._make(specs[choice]), workload) for choice in new for workload in self._workloads]
        found = iter(self._results(tasks))
        for choice in new:
            self.tried[choice] = Trial(choice, tuple(itertools.islice(found, len(self._workloads))))

    def _results(self, tasks: Sequence[tuple[Simulator, Workload]]) -> Iterator[Result]:
        if self._jobs <= 1:
            yield from self._told(map(_simulate, tasks))
            return
        with ProcessPoolExecutor(self._jobs, mp_context=get_context("fork")) as pool:  # leaves no process behind
            yield from self._told(pool.map(_simulate, tasks))

    def _told(self, results: Iterator[Result]) -> Iterator[Result]:
        for result in results:
            self._progress()
            yield result


def _simulate(task: tuple[Simulator, Workload]) -> Result:
    simulator, workload = task
    return simulator.simulate(workload, simulator.legato())


def _front(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    found: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: (trial.gpu_hours, -trial.attainment)):
        if not found or trial.attainment > found[-1].attainment:
            found.append(trial)
    return tuple(found)


def _wishes(trial: Trial) -> Mapping[str, list[int]]:
    """Of each pool, in order of size."""
    samples = [sample for result in trial.results for sample in result.timeline]
    return {pool: sorted(sample.wish[pool] for sample in samples) for pool, _, _ in trial.choice.bounds}


def _mins(wishes: Sequence[int], least: int, most: int) -> set[int]:
    """From 1, or 0 where the manifest allows it: a pool that may be empty is another service than one that may not."""
    quantiles = (wishes[min(len(wishes) - 1, int(share * len(wishes)))] for share in MIN_SHARES)
    return {min(least, 1), *(min(max(size, 1), most) for size in quantiles)}


def _maxes(wishes: Sequence[int], least: int, most: int) -> set[int]:
    """No more than the manifest allows."""
    return {most, *(max(1, round(share * wishes[-1])) for share in MAX_SHARES)}


def _with_sizes(pool: str, end: int, sizes: set[int], choice: Choice) -> Iterator[Choice]:
    return (choice.with_bound(pool, end, size) for size in sorted(sizes))
