"""A fixed number of workers: no autoscaler at all, sized for the workload's worst minutes.

Of two pools, or of one whose workers do both, as a service without disaggregation has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from legato_simulator.baselines.baseline import Grid, Rival
from legato_simulator.baselines.search_context import Ground
from legato_simulator.engine.scaler import Observation, Scaler


@dataclass(frozen=True)
class Fixed:
    """So many workers."""

    prefill: float
    decode: float

    def scaler(self) -> Scaler:
        return _FixedScaler("fixed", {"prefill": round(self.prefill), "decode": round(self.decode)})


@dataclass(frozen=True)
class FixedUnified:
    """So many unified workers. They are in the decode pool; there is no other."""

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


def _grids(ground: Ground) -> tuple[Grid, ...]:
    return (Grid(_down_from(ground.most["prefill"]), _down_from(ground.most["decode"]), Fixed),)


def _unified_grids(ground: Ground) -> tuple[Grid, ...]:
    return (Grid((0.0,), _down_from(ground.most["decode"]), FixedUnified),)


def _down_from(most: int) -> tuple[float, ...]:
    return tuple(float(size) for size in range(most, 0, -1))


RIVAL = Rival("fixed", "a fixed number of workers", _grids)
UNIFIED = Rival("fixed-unified", "a fixed number of workers that both prefill and decode", _unified_grids, unified=True)
