"""Settings of a baseline, which make a new scaler for each run, and grids of settings for tuning."""

from collections.abc import Callable
from dataclasses import dataclass

from legato_simulator.baselines.search_context import SearchContext
from legato_simulator.engine.scaler import Scaler

Make = Callable[[float, float], Scaler]  # from a value for each pool; picklable, since tuning runs in other processes


@dataclass(frozen=True)
class Settings:
    """The tuned value of each pool, such as a target per worker."""

    prefill: float
    decode: float
    make: Make

    def scaler(self) -> Scaler:
        """Returns a scaler without history."""
        return self.make(self.prefill, self.decode)


@dataclass(frozen=True)
class Grid:
    """The values of each pool to try, the most generous ones first."""

    prefill: tuple[float, ...]
    decode: tuple[float, ...]
    make: Make


@dataclass(frozen=True)
class Baseline:
    """An autoscaler that Legato is compared with."""

    name: str
    about: str  # its metrics, in a few words
    grids: Callable[[SearchContext], tuple[Grid, ...]]
    unified: bool = False  # True: it scales one pool of unified workers instead of two pools
