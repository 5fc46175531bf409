"""A fixed number of workers, without an autoscaler, sized for the workload's worst minutes.

Either two pools, or one pool of unified workers, as in a service without disaggregation.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from legato_simulator.baselines.baseline import Baseline, Grid
from legato_simulator.baselines.search_context import SearchContext
from legato_simulator.engine.scaler import Observation, Scaler


@dataclass(frozen=True)
class Fixed:
    """The number of workers of each pool."""

    prefill: float
    decode: float

    def scaler(self) -> Scaler:
        return _FixedScaler("fixed", {"prefill": round(self.prefill), "decode": round(self.decode)})


@dataclass(frozen=True)
class FixedUnified:
    """The number of unified workers. They form the decode pool, the only one."""

    prefill: float
    decode: float

    def scaler(self) -> Scaler:
        return _FixedScaler("fixed-unified", {"decode": round(self.decode)})


class _FixedScaler:
    def __init__(self, name: str, sizes: Mapping[str, int]) -> None:
        self.name = name
        self._sizes = sizes

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        return {pool: self._sizes[pool] for pool in seen.sizes}


def _grids(context: SearchContext) -> tuple[Grid, ...]:
    return (Grid(_down_from(context.most["prefill"]), _down_from(context.most["decode"]), Fixed),)


def _unified_grids(context: SearchContext) -> tuple[Grid, ...]:
    return (Grid((0.0,), _down_from(context.most["decode"]), FixedUnified),)


def _down_from(most: int) -> tuple[float, ...]:
    return tuple(float(size) for size in range(most, 0, -1))


BASELINE = Baseline("fixed", "a fixed number of workers", _grids)
UNIFIED = Baseline(
    "fixed-unified", "a fixed number of workers that both prefill and decode", _unified_grids, unified=True
)
