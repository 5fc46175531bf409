"""Tunes a baseline on a workload: searches its grid for the attainment with the fewest GPU-hours.

The search assumes that more generous settings have neither a lower attainment nor fewer GPU-hours. The cheapest
sufficient settings then lie on a border, and bisection finds them with few simulations. If a result contradicts the
assumption, the best settings tried are used.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from legato_simulator.baselines.baseline import Baseline, Grid, Settings
from legato_simulator.baselines.search_context import SearchContext
from legato_simulator.engine.result import Result
from legato_simulator.engine.scaler import Scaler

ATTAINMENT = 0.95  # of the offered requests

Simulate = Callable[[Scaler], Result]


@dataclass(frozen=True)
class Tuned:
    """The best settings on a workload and their result, which came closest if none reaches the attainment."""

    settings: Settings
    result: Result
    runs: int  # simulations that it took


def reaches(result: Result) -> bool:
    """Returns True if the attainment is reached."""
    return result.attainment >= ATTAINMENT


def tune(baseline: Baseline, context: SearchContext, simulate: Simulate) -> Tuned:
    """Searches all grids of a baseline."""
    tried: list[tuple[Settings, Result]] = []
    for grid in baseline.grids(context):
        search = _Search(grid, simulate)
        search.run()
        tried.extend(search.tried.values())
    settings, result = best(tried)
    return Tuned(settings, result, len(tried))


def best(tried: Iterable[tuple[Settings, Result]]) -> tuple[Settings, Result]:
    """Returns the cheapest settings that reach the attainment; if none does, those with the highest."""
    return min(tried, key=lambda entry: _rank(entry[1]))


def _rank(result: Result) -> tuple[float, float]:
    return (0.0, result.gpu_hours) if reaches(result) else (1.0 - result.attainment, result.gpu_hours)


class _Search:
    """The search of one grid. Indices grow from generous to frugal."""

    def __init__(self, grid: Grid, simulate: Simulate) -> None:
        self._grid, self._simulate = grid, simulate
        self.tried: dict[tuple[int, int], tuple[Settings, Result]] = {}

    def run(self) -> None:
        """Simulates until the border is known."""
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
        """Returns the last index before `end` that is enough, given that `known` is."""
        while end - known > 1:
            middle = (known + end) // 2
            known, end = (middle, end) if enough(middle) else (known, middle)
        return known

    def _enough(self, prefill: int, decode: int) -> bool:
        if (prefill, decode) not in self.tried:
            settings = Settings(self._grid.prefill[prefill], self._grid.decode[decode], self._grid.make)
            self.tried[prefill, decode] = settings, self._simulate(settings.scaler())
        return reaches(self.tried[prefill, decode][1])
