"""The parts of every baseline: settings, which make a new scaler for each run, and grids of settings for tuning."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from legato_simulator.baselines.search_context import SearchContext
from legato_simulator.engine.scaler import Scaler


class Settings(Protocol):
    """Parameters of one baseline. Frozen and picklable, since tuning runs in other processes."""

    def scaler(self) -> Scaler:
        """Returns a scaler without history."""
        ...


@dataclass(frozen=True)
class Grid:
    """Settings made from a value for each pool, the most generous values first."""

    prefill: tuple[float, ...]
    decode: tuple[float, ...]
    make: Callable[[float, float], Settings]


@dataclass(frozen=True)
class Baseline:
    """An autoscaler that Legato is compared with."""

    name: str
    about: str  # its metrics, in a few words
    grids: Callable[[SearchContext], tuple[Grid, ...]]
    unified: bool = False  # True: it scales one pool of unified workers instead of two pools
