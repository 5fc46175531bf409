"""Tuning a rival on a workload: the settings of its grid that reach the attainment with the fewest GPU-hours.

More generous settings are taken to have no lower attainment and no fewer GPU-hours. Then the cheapest settings that
reach the attainment lie on the border of those that do, and bisection finds them with few of the grid's simulations.
Where a result contradicts the assumption, the best of those that were tried is taken.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from legato_simulator.baselines.baseline import Grid, Rival, Settings
from legato_simulator.baselines.search_context import Ground
from legato_simulator.engine.result import Result
from legato_simulator.engine.scaler import Scaler

ATTAINMENT = 0.95  # of the offered requests

Simulate = Callable[[Scaler], Result]


@dataclass(frozen=True)
class Tuned:
    """The best settings on a workload, and what they came to."""

    settings: Settings
    result: Result
    runs: int  # simulations that it took

    @property
    def reaches(self) -> bool:
        """Whether the attainment is reached; if not, these settings came closest to it."""
        return reaches(self.result)


def reaches(result: Result) -> bool:
    """Whether enough of the offered requests were good."""
    return result.attainment >= ATTAINMENT


def tune(rival: Rival, ground: Ground, simulate: Simulate, progress: Callable[[Result], None] | None = None) -> Tuned:
    """Searches all grids of a rival. `progress` is told every result."""
    tried: list[tuple[Settings, Result]] = []
    for grid in rival.grids(ground):
        search = _Search(grid, simulate, progress)
        search.run()
        tried.extend(search.tried.values())
    settings, result = best(tried)
    return Tuned(settings, result, len(tried))


def best(tried: Iterable[tuple[Settings, Result]]) -> tuple[Settings, Result]:
    """The fewest GPU-hours among those that reach the attainment; if none does, the highest attainment."""
    return min(tried, key=lambda entry: _rank(entry[1]))


def _rank(result: Result) -> tuple[float, float]:
    return (0.0, result.gpu_hours) if reaches(result) else (1.0 - result.attainment, result.gpu_hours)


class _Search:
    """Of one grid. Indices grow from generous to frugal."""

    def __init__(self, grid: Grid, simulate: Simulate, progress: Callable[[Result], None] | None) -> None:
        self._grid, self._simulate, self._progress = grid, simulate, progress
        self.tried: dict[tuple[int, int], tuple[Settings, Result]] = {}

    def run(self) -> None:
        """Tries what is needed to know the border."""
        if not self._enough(0, 0):
            return
        last_prefill = self._last(len(self._grid.prefill), 0, partial(self._enough, decode=0))
        last_decode = self._last(len(self._grid.decode), 0, partial(self._enough, 0))
        prefill = 0
        for decode in range(last_decode, -1, -1):
            if self._enough(last_prefill, decode):
                return
            prefill = self._last(last_prefill, prefill, partial(self._enough, decode=decode))

    def _last(self, end: int, known: int, enough: Callable[[int], bool]) -> int:
        """The last index before `end` that is enough; `known` is."""
        while end - known > 1:
            middle = (known + end) // 2
            known, end = (middle, end) if enough(middle) else (known, middle)
        return known

    def _enough(self, prefill: int, decode: int) -> bool:
        if (prefill, decode) not in self.tried:
            settings = self._grid.make(self._grid.prefill[prefill], self._grid.decode[decode])
            result = self._simulate(settings.scaler())
            self.tried[prefill, decode] = settings, result
            if self._progress:
                self._progress(result)
        return reaches(self.tried[prefill, decode][1])
