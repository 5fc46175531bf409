"""Tuning a rival on a workload: the settings of its grid that reach the attainment with the fewest GPU-hours.

More generous settings are taken to have no lower attainment and no fewer GPU-hours. Then the cheapest settings that
reach the attainment lie on the border of those that do, and a walk along it finds them with m + n - 1 runs instead of
m x n: from the most generous prefill and the most frugal decode, a miss makes decode more generous, and a hit makes
prefill more frugal. Where a result contradicts the assumption, what the walk met and is best still holds.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from legato_cli.simulation.result import Result
from legato_cli.simulation.rivals.ground import Ground
from legato_cli.simulation.rivals.rival import Grid, Rival, Settings
from legato_cli.simulation.scaler import Scaler

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
        for settings, result in _walk(grid, simulate):
            tried.append((settings, result))
            if progress:
                progress(result)
    settings, result = best(tried)
    return Tuned(settings, result, len(tried))


def best(tried: Iterable[tuple[Settings, Result]]) -> tuple[Settings, Result]:
    """The fewest GPU-hours among those that reach the attainment; if none does, the highest attainment."""
    return min(tried, key=lambda entry: _rank(entry[1]))


def most_runs(rival: Rival, ground: Ground) -> int:
    """How many simulations tuning takes at most."""
    return sum(len(grid.prefill) + len(grid.decode) - 1 for grid in rival.grids(ground))


def _rank(result: Result) -> tuple[float, float]:
    return (0.0, result.gpu_hours) if reaches(result) else (1.0 - result.attainment, result.gpu_hours)


def _walk(grid: Grid, simulate: Simulate) -> Iterator[tuple[Settings, Result]]:
    prefill, decode = 0, len(grid.decode) - 1
    while prefill < len(grid.prefill) and decode >= 0:
        settings = grid.make(grid.prefill[prefill], grid.decode[decode])
        result = simulate(settings.scaler())
        yield settings, result
        if reaches(result):
            prefill += 1
        else:
            decode -= 1
