"""Finds the highest load that a shape serves with enough attainment, also with other chunks and `slo.tpot`."""

from dataclasses import dataclass

from legato_simulator.baselines.tuning import reaches
from legato_simulator.planner.lockstep import Search, ShapeTrial
from legato_simulator.planner.shape import PoolShape
from legato_simulator.planner.sizes import SizeLimits, variants

MOST_LOAD = 8.0  # multiple of the workload's rate
FACTOR = 1.5  # between two loads, until one is too high
PRECISION = 1.03  # between the highest load that is served and the lowest that is not


@dataclass(frozen=True)
class Sustained:
    """A shape and the highest multiple of the workload's rate at which it reaches the attainment."""

    shape: PoolShape
    load: float


def search(shape: PoolShape, objective: float, limits: SizeLimits) -> Search[Sustained]:
    """Searches the load of a shape that serves the workload, then a better chunk and a better `slo.tpot`."""
    load = yield from _highest(shape, 1.0)
    for name in ("chunk", "tpot"):
        others = [other for other in variants(shape, objective)[name] if limits.allows(other)]
        stress = load * PRECISION
        results = yield [ShapeTrial(other, stress) for other in others]
        ranked = sorted(zip(results, others, strict=True), key=lambda pair: -pair[0].attainment)
        if ranked and reaches(ranked[0][0]) and load < MOST_LOAD:
            (usual,) = yield [ShapeTrial(ranked[0][1])]
            if reaches(usual):  # attainment may rise with the load, as batches fall differently
                shape = ranked[0][1]
                load = yield from _highest(shape, stress)
    return Sustained(shape, load)


def _highest(shape: PoolShape, good: float) -> Search[float]:
    """Returns the highest load that reaches the attainment, given that `good` does."""
    bad = 0.0
    while not bad and good < MOST_LOAD:
        (result,) = yield [ShapeTrial(shape, tried := min(MOST_LOAD, good * FACTOR))]
        good, bad = (tried, bad) if reaches(result) else (good, tried)
    while bad and bad / good > PRECISION:
        (result,) = yield [ShapeTrial(shape, middle := (good * bad) ** 0.5)]
        good, bad = (middle, bad) if reaches(result) else (good, middle)
    return good
