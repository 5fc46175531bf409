"""Legato beside tuned rivals, over several workloads."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Protocol

from legato_simulator.baselines import BOUND, RIVALS
from legato_simulator.baselines.baseline import Settings
from legato_simulator.baselines.search_context import Ground
from legato_simulator.baselines.tuning import reaches, tune
from legato_simulator.engine.result import Result
from legato_simulator.engine.scaler import Scaler
from legato_simulator.workload.workload import Workload

LEGATO = "legato"


class Simulator(Protocol):
    """One service in virtual time. Picklable, as workloads are simulated in several processes."""

    def simulate(self, workload: Workload, scaler: Scaler) -> Result:
        """One run."""
        ...

    def legato(self) -> Scaler:
        """A fresh one of Legato's own."""
        ...

    def ground(self, workload: Workload) -> Ground:
        """Where grids of rivals lie."""
        ...

    def unified(self) -> "Simulator":
        """The same service without a prefill pool, with as many workers at most."""
        ...


@dataclass(frozen=True)
class Entry:
    """One scaler on one workload."""

    result: Result
    settings: Settings | None = None  # None for Legato, which has none
    tuned_on: str = ""  # the workload that the settings are for
    runs: int = 1  # simulations, tuning included

    @property
    def elsewhere(self) -> bool:
        """Whether the settings are those for another workload."""
        return bool(self.tuned_on) and self.tuned_on != self.result.workload

    @property
    def name(self) -> str:
        """The scaler, and what it was tuned on if that was another workload."""
        return f"{self.result.scaler}, tuned on {self.tuned_on}" if self.elsewhere else self.result.scaler

    @property
    def chosen(self) -> str:
        """The tuned values."""
        if self.settings is None:
            return ""
        fields = dataclasses.asdict(self.settings)  # type: ignore[call-overload]
        return ", ".join(f"{name} {fields[name]:.3g}" for name in ("prefill", "decode") if fields[name])


@dataclass(frozen=True)
class Comparison:
    """All entries, workload by workload."""

    entries: tuple[Entry, ...]

    @property
    def workloads(self) -> tuple[str, ...]:
        """In order of appearance."""
        return tuple(dict.fromkeys(entry.result.workload for entry in self.entries))

    def of(self, workload: str) -> tuple[Entry, ...]:
        """Entries of one workload."""
        return tuple(entry for entry in self.entries if entry.result.workload == workload)

    def entry(self, workload: str, name: str) -> Entry | None:
        """One scaler on one workload."""
        return next((entry for entry in self.of(workload) if entry.name == name), None)

    def best(self, workload: str) -> Entry | None:
        """The tuned rival with the fewest GPU-hours among those that reach the attainment. No bound is a rival."""
        rivals = [
            entry
            for entry in self.of(workload)
            if entry.settings and not entry.elsewhere and entry.result.scaler != BOUND and reaches(entry.result)
        ]
        return min(rivals, key=lambda entry: entry.result.gpu_hours, default=None)

    def ratio(self, entry: Entry) -> float | None:
        """GPU-hours ÷ those of the best tuned rival of the workload; None if no rival reaches the attainment."""
        best = self.best(entry.result.workload)
        return entry.result.gpu_hours / best.result.gpu_hours if best and best.result.gpu_hours else None


def compare(
    simulator: Simulator,
    workloads: Sequence[Workload],
    rivals: Sequence[str] = tuple(RIVALS),
    elsewhere: Sequence[str] = (),
    jobs: int = 1,
    progress: Callable[[Entry], None] | None = None,
) -> Comparison:
    """Legato and these rivals, each tuned on each workload.

    Rivals named in `elsewhere` also run with what they were tuned to on the workload before. The order of entries is
    that of the arguments, whatever finishes first.
    """
    made: dict[tuple[int, str, bool], Entry] = {}
    tuned = [(at, name, False, workload, None) for at, workload in enumerate(workloads) for name in (LEGATO, *rivals)]
    _collect(made, simulator, tuned, jobs, progress)
    moved = [
        (at, name, True, workload, made[(at - 1) % len(workloads), name, False])
        for at, workload in enumerate(workloads)
        for name in elsewhere
        if len(workloads) > 1 and name in rivals
    ]
    _collect(made, simulator, moved, jobs, progress)
    order = sorted(made, key=lambda key: (key[0], (LEGATO, *rivals).index(key[1]), key[2]))
    return Comparison(tuple(made[key] for key in order))


_Task = tuple[int, str, bool, Workload, Entry | None]


def _collect(
    made: dict[tuple[int, str, bool], Entry],
    simulator: Simulator,
    tasks: Sequence[_Task],
    jobs: int,
    progress: Callable[[Entry], None] | None,
) -> None:
    for (at, name, moved, _, _), entry in _entries(simulator, tasks, jobs):
        made[at, name, moved] = entry
        if progress:
            progress(entry)


def _entries(simulator: Simulator, tasks: Sequence[_Task], jobs: int) -> Iterator[tuple[_Task, Entry]]:
    if jobs <= 1:
        for task in tasks:
            yield task, _entry(simulator, *task[1:])
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:  # leaves no process behind
        running = {pool.submit(_entry, simulator, *task[1:]): task for task in tasks}
        for future in as_completed(running):
            yield running[future], future.result()


def _entry(simulator: Simulator, name: str, moved: bool, workload: Workload, source: Entry | None) -> Entry:
    if name == LEGATO:
        return Entry(simulator.simulate(workload, simulator.legato()))
    rival = RIVALS[name]
    if rival.unified:
        simulator = simulator.unified()
    if moved and source and source.settings:
        result = simulator.simulate(workload, source.settings.scaler())
        return Entry(result, source.settings, source.tuned_on)
    found = tune(rival, simulator.ground(workload), lambda scaler: simulator.simulate(workload, scaler))
    return Entry(found.result, found.settings, workload.name, found.runs)


def as_json(comparison: Comparison) -> list[dict[str, Any]]:
    """Every entry with its result, without timelines."""
    return [
        {
            **{name: value for name, value in dataclasses.asdict(entry.result).items() if name != "timeline"},
            "tuned_on": entry.tuned_on,
            "settings": entry.chosen,
            "ratio": comparison.ratio(entry),
            "runs": entry.runs,
        }
        for entry in comparison.entries
    ]
