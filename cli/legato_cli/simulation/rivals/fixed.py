"""A fixed number of workers: no autoscaler at all, sized for the workload's worst minutes."""

from collections.abc import Mapping
from dataclasses import dataclass

from legato_cli.simulation.rivals.ground import Ground
from legato_cli.simulation.rivals.rival import Grid, Rival
from legato_cli.simulation.scaler import Observation, Scaler


@dataclass(frozen=True)
class Fixed:
    """So many workers. Without a prefill pool, only `decode` counts."""

    prefill: float
    decode: float

    def scaler(self) -> Scaler:
        return _FixedScaler(self)


class _FixedScaler:
    name = "fixed"

    def __init__(self, settings: Fixed) -> None:
        self._sizes = {"prefill": round(settings.prefill), "decode": round(settings.decode)}

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        return {pool: self._sizes[pool] for pool in seen.sizes}


def _grids(ground: Ground) -> tuple[Grid, ...]:
    def down_from(pool: str) -> tuple[float, ...]:
        return tuple(float(size) for size in range(ground.most.get(pool, 1), 0, -1))

    return (Grid(down_from("prefill"), down_from("decode"), Fixed),)


RIVAL = Rival("fixed", "a fixed number of workers", _grids)
