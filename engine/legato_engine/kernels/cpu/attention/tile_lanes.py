"""Functions of registers for both kernels of a prompt's tiles. 32 lanes, each one query of one head, are two registers,
a line of 128 bytes in memory. Four numbers of keys or values have eight sums, and eight have 16, which fill both units
for products.

Memory is given by address; `by` are the two registers of a line.
"""

import numpy as np
from numba import njit

from legato_engine.kernels.cpu.simd.lanes import maximum, multiply, power_of_two, prefetch, subtract
from legato_engine.kernels.cpu.simd.scalar import RELAXED
from legato_engine.kernels.cpu.simd.vector import load, store, store_eight, zero

LANES = 32


@njit(cache=True)
def ask_for(following, four, to_values, size):
    """Prefetches the next keys and values, `size` bytes of four positions, and of the four after those."""
    for line in range(0, size, 64):
        prefetch(following[four] + line)
        prefetch(following[four] + to_values + line)
        prefetch(following[four + 1] + line)
        prefetch(following[four + 1] + to_values + line)


@njit(cache=True)
def no_sums():
    """Eight registers."""
    return zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()


@njit(cache=True)
def scaled_sums(at, factors):
    """Four lines, times `factors`."""
    return (
        multiply(load(at), factors[0]), multiply(load(at + 64), factors[1]),
        multiply(load(at + 128), factors[0]), multiply(load(at + 192), factors[1]),
        multiply(load(at + 256), factors[0]), multiply(load(at + 320), factors[1]),
        multiply(load(at + 384), factors[0]), multiply(load(at + 448), factors[1]),
    )  # fmt: skip


@njit(cache=True)
def store_sums(at, early, late):
    """Stores eight lines."""
    store_eight(early, at, 64)
    store_eight(late, at + 512, 64)


@njit(cache=True)
def raise_best(scores, count, best, scale):
    """Raises `best` [32] to the largest of scores [count, 32]; `scale` becomes the factor for earlier weights. Returns
    the registers of both.
    """
    old0, old1 = load(best), load(best + 64)
    best0, best1 = old0, old1
    at = scores
    for _ in range(count):
        best0, best1 = maximum(load(at), best0), maximum(load(at + 64), best1)
        at += 128
    store(best, best0)
    store(best + 64, best1)
    scale0, scale1 = power_of_two(subtract(old0, best0)), power_of_two(subtract(old1, best1))
    store(scale, scale0)
    store(scale + 64, scale1)
    return (best0, best1), (scale0, scale1)


@njit(cache=True, fastmath=RELAXED)
def mask(scores, first, count, begins, ends):
    """Sets scores [count, 32] of positions `first …` that a lane does not see to -infinity."""
    for place in range(count):
        line = scores[place]
        for lane in range(LANES):
            seen = (begins[lane] <= first + place) & (first + place < ends[lane])
            line[lane] = line[lane] if seen else np.float32(-np.inf)
