"""Stateless random numbers: one for each (seed, choice, position), the same in every batch and on every worker.

Each key is mixed in with the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
Generators, 2014): each of its output bits depends on every input bit.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from legato_engine.scheduler.batch import Draw

_MASK = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniform(draws: Sequence[Draw]) -> npt.NDArray[np.float64]:
    """A number in (0, 1] for each draw, with 53 random bits. Never 0, so that no token of weight 0 can be drawn."""
    keys = np.array([(d.params.seed & _MASK, d.choice & _MASK, d.position) for d in draws], dtype=np.uint64)
    state = np.zeros(len(draws), dtype=np.uint64)
    for column in keys.reshape(-1, 3).T:
        state = _mixed(state ^ _mixed(column + _GOLDEN))
    return ((state >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53


def _mixed(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed
