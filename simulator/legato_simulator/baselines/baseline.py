"""What every rival has: settings, from which each run makes a fresh scaler, and grids of them to be tuned over."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from legato_simulator.baselines.search_context import Ground
from legato_simulator.engine.scaler import Scaler


class Settings(Protocol):
    """Parameters of one rival. Frozen and picklable: what tunes them runs in other processes."""

    def scaler(self) -> Scaler:
        """A scaler that has seen nothing yet."""
        ...


@dataclass(frozen=True)
class Grid:
    """Settings by a value for the prefill pool and one for the decode pool, the most generous ones first."""

    prefill: tuple[float, ...]
    decode: tuple[float, ...]
    make: Callable[[float, float], Settings]


@dataclass(frozen=True)
class Rival:
    """An autoscaler to compare with."""

    name: str
    about: str  # what it scales by, in a few words
    grids: Callable[[Ground], tuple[Grid, ...]]
    unified: bool = False  # it scales workers that both prefill and decode, instead of two pools
