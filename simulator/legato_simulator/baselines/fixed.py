"""A fixed number of workers, without an autoscaler, sized for the workload's worst minutes.

Either two pools, or one pool of unified workers, as in a service without disaggregation.
"""

from collections.abc import Mapping
from functools import partial

from legato_simulator.baselines.baseline import Baseline, Grid
from legato_simulator.baselines.search_context import SearchContext
from legato_simulator.engine.scaler import Observation


class Fixed:
    """The number of workers of each pool. Unified workers form the decode pool, the only one."""

    def __init__(self, prefill: float, decode: float, name: str = "fixed") -> None:
        self.name = name
        self._sizes = {"prefill": round(prefill), "decode": round(decode)}

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        return {pool: self._sizes[pool] for pool in seen.sizes}


def _grids(context: SearchContext) -> tuple[Grid, ...]:
    return (Grid(_down_from(context.most["prefill"]), _down_from(context.most["decode"]), Fixed),)


def _unified_grids(context: SearchContext) -> tuple[Grid, ...]:
    return (Grid((0.0,), _down_from(context.most["decode"]), partial(Fixed, name="fixed-unified")),)


def _down_from(most: int) -> tuple[float, ...]:
    return tuple(float(size) for size in range(most, 0, -1))


BASELINE = Baseline("fixed", "a fixed number of workers", _grids)
UNIFIED = Baseline(
    "fixed-unified", "a fixed number of workers that both prefill and decode", _unified_grids, unified=True
)
