"""Runs searches side by side: each asks for simulations in batches, and all batches run together in several processes.

The order of results does not depend on the number of processes.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

from legato_simulator.engine.result import Result
from legato_simulator.planner.shape import PoolShape

T = TypeVar("T")


@dataclass(frozen=True)
class ShapeTrial:
    """A shape under a multiple of the workload's rate."""

    shape: PoolShape
    load: float = 1.0


Asked = Sequence[ShapeTrial]
Answered = Sequence[Result]
Search = Generator[Asked, Answered, T]
Simulate = Callable[[ShapeTrial], Result]
Batch = Callable[[Iterable[ShapeTrial]], Iterator[Result]]  # in the order of the trials


@contextmanager
def batches(simulate: Simulate, jobs: int) -> Iterator[Batch]:
    """Yields a function that simulates trials in `jobs` processes."""
    if jobs <= 1:
        yield partial(map, simulate)
        return
    # A fork leaves no process behind and shares the trace, which would otherwise be sent with each trial.
    with ProcessPoolExecutor(jobs, get_context("fork"), _inherited.append, (simulate,)) as pool:
        yield partial(pool.map, _simulate)


_inherited: list[Simulate] = []  # of the processes that `batches` starts


def _simulate(trial: ShapeTrial) -> Result:
    return _inherited[-1](trial)


class Simulations:
    """Simulates each trial once."""

    def __init__(self, batch: Batch, progress: Callable[[], object]) -> None:
        self._batch, self._progress = batch, progress
        self.results: dict[ShapeTrial, Result] = {}

    def run(self, searches: Sequence[Search[T]]) -> list[T]:
        """Runs searches to their end and returns their results."""
        ended: dict[int, T] = {}
        asked = {i: self._advance(search, None, i, ended) for i, search in enumerate(searches)}
        while any(i not in ended for i in asked):
            open_ = {i: trials for i, trials in asked.items() if i not in ended}
            self._simulate([trial for trials in open_.values() for trial in trials])
            for i, trials in open_.items():
                asked[i] = self._advance(searches[i], [self.results[trial] for trial in trials], i, ended)
        return [ended[i] for i in range(len(searches))]

    def _advance(self, search: Search[T], answers: Answered | None, number: int, ended: dict[int, T]) -> Asked:
        try:
            return next(search) if answers is None else search.send(answers)
        except StopIteration as stop:
            ended[number] = stop.value
            return ()

    def _simulate(self, trials: Sequence[ShapeTrial]) -> None:
        new = [trial for trial in dict.fromkeys(trials) if trial not in self.results]
        for trial, result in zip(new, self._batch(new), strict=True):
            self.results[trial] = result
            self._progress()
