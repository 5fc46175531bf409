"""Compares Legato with tuned baselines over several workloads."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from legato_simulator.baselines import BASELINES, BOUND
from legato_simulator.baselines.baseline import Settings
from legato_simulator.baselines.tuning import reaches, tune
from legato_simulator.engine.result import Result
from legato_simulator.simulator import ServiceSimulator
from legato_simulator.workload.workload import Workload

LEGATO = "legato"


@dataclass(frozen=True)
class Entry:
    """The result of one scaler on one workload."""

    result: Result
    settings: Settings | None = None  # None for Legato
    tuned_on: str = ""  # the workload that the settings are for
    runs: int = 1  # simulations, tuning included

    @property
    def elsewhere(self) -> bool:
        """True if the settings were tuned on another workload."""
        return bool(self.tuned_on) and self.tuned_on != self.result.workload

    @property
    def name(self) -> str:
        """The scaler's name, with the workload that it was tuned on if that is another one."""
        return f"{self.result.scaler}, tuned on {self.tuned_on}" if self.elsewhere else self.result.scaler

    @property
    def chosen(self) -> str:
        """The tuned values as text."""
        if self.settings is None:
            return ""
        values = {"prefill": self.settings.prefill, "decode": self.settings.decode}
        return ", ".join(f"{pool} {value:.3g}" for pool, value in values.items() if value)


@dataclass(frozen=True)
class Comparison:
    """All entries, grouped by workload."""

    entries: tuple[Entry, ...]

    @property
    def workloads(self) -> tuple[str, ...]:
        """Names of the workloads, in order of appearance."""
        return tuple(dict.fromkeys(entry.result.workload for entry in self.entries))

    def entries_of(self, workload: str) -> tuple[Entry, ...]:
        """Returns the entries of one workload."""
        return tuple(entry for entry in self.entries if entry.result.workload == workload)

    def entry(self, workload: str, name: str) -> Entry | None:
        """Returns the entry of one scaler on one workload."""
        return next((entry for entry in self.entries_of(workload) if entry.name == name), None)

    def best(self, workload: str) -> Entry | None:
        """Returns the tuned baseline with the fewest GPU-hours that reaches the attainment.

        The bound does not count.
        """
        baselines = [
            entry
            for entry in self.entries_of(workload)
            if entry.settings and not entry.elsewhere and entry.result.scaler != BOUND and reaches(entry.result)
        ]
        return min(baselines, key=lambda entry: entry.result.gpu_hours, default=None)

    def ratio(self, entry: Entry) -> float | None:
        """Returns GPU-hours divided by the best tuned baseline's; None if no baseline reaches the attainment."""
        best = self.best(entry.result.workload)
        return entry.result.gpu_hours / best.result.gpu_hours if best and best.result.gpu_hours else None


def compare(
    simulator: ServiceSimulator,
    workloads: Sequence[Workload],
    baselines: Sequence[str] = tuple(BASELINES),
    elsewhere: Sequence[str] = (),
    jobs: int = 1,
    progress: Callable[[Entry], None] | None = None,
) -> Comparison:
    """Runs Legato and these baselines, each tuned on each workload.

    Baselines named in `elsewhere` also run with the settings of the preceding workload. Entries are in the order of the
    arguments.
    """
    made: dict[tuple[int, str, bool], Entry] = {}
    tuned = [
        (at, name, False, workload, None) for at, workload in enumerate(workloads) for name in (LEGATO, *baselines)
    ]
    _collect(made, simulator, tuned, jobs, progress)
    moved = [
        (at, name, True, workload, made[(at - 1) % len(workloads), name, False])
        for at, workload in enumerate(workloads)
        for name in elsewhere
        if len(workloads) > 1 and name in baselines
    ]
    _collect(made, simulator, moved, jobs, progress)
    order = sorted(made, key=lambda key: (key[0], (LEGATO, *baselines).index(key[1]), key[2]))
    return Comparison(tuple(made[key] for key in order))


_Task = tuple[int, str, bool, Workload, Entry | None]


def _collect(
    made: dict[tuple[int, str, bool], Entry],
    simulator: ServiceSimulator,
    tasks: Sequence[_Task],
    jobs: int,
    progress: Callable[[Entry], None] | None,
) -> None:
    for (at, name, moved, _, _), entry in _entries(simulator, tasks, jobs):
        made[at, name, moved] = entry
        if progress:
            progress(entry)


def _entries(simulator: ServiceSimulator, tasks: Sequence[_Task], jobs: int) -> Iterator[tuple[_Task, Entry]]:
    if jobs <= 1:
        for task in tasks:
            yield task, _entry(simulator, *task[1:])
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:  # leaves no process behind
        running = {pool.submit(_entry, simulator, *task[1:]): task for task in tasks}
        for future in as_completed(running):
            yield running[future], future.result()


def _entry(simulator: ServiceSimulator, name: str, moved: bool, workload: Workload, source: Entry | None) -> Entry:
    if name == LEGATO:
        return Entry(simulator.simulate(workload, simulator.legato()))
    baseline = BASELINES[name]
    if baseline.unified:
        simulator = simulator.unified()
    if moved and source and source.settings:
        result = simulator.simulate(workload, source.settings.scaler())
        return Entry(result, source.settings, source.tuned_on)
    tuned = tune(baseline, simulator.search_context(workload), lambda scaler: simulator.simulate(workload, scaler))
    return Entry(tuned.result, tuned.settings, workload.name, tuned.runs)


def as_json(comparison: Comparison) -> list[dict[str, Any]]:
    """Returns every entry with its result. Deterministic."""
    return [
        {
            **{name: value for name, value in dataclasses.asdict(entry.result).items() if name != "timeline"},
            "tuned_on": entry.tuned_on,
            "settings": entry.chosen,
            "ratio": comparison.ratio(entry),
            "runs": entry.runs,
            "timeline": [dataclasses.asdict(sample) for sample in entry.result.timeline],
        }
        for entry in comparison.entries
    ]
