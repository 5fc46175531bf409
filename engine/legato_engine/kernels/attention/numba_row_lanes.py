"""What both kernels of decoding rows do alike, for four heads that share a KV head.

Memory is given by address; what was found is [4, dim], scores [positions / 4, 4 heads, 4 positions], so that registers
are full from the first sum to the last.
"""

import numpy as np
from numba import njit

from legato_engine.kernels.lanes import (
    maximum,
    maximum_in_quarters,
    multiply,
    power_of_two,
    prefetch,
    subtract,
    sum_in_quarters,
    sum_of_quarters,
    sums_of_quarters,
)
from legato_engine.kernels.vector import broadcast, load, multiply_add, store, store_four, zero


@njit(cache=True)
def ask_for(at, size):
    """What is read next, `size` bytes."""
    for line in range(0, size, 64):
        prefetch(at + line)


@njit(cache=True)
def no_sums():
    """Four registers."""
    return zero(), zero(), zero(), zero()


@njit(cache=True)
def store_scores(at, heads, a, b, c, d):
    """Sums of four positions for each head become four scores. Without a fourth of the `heads`, it has zeros."""
    of_d = zero()
    if heads > 3:
        of_d = sums_of_quarters(d[0], d[1], d[2], d[3])
    of_a, of_b = sums_of_quarters(a[0], a[1], a[2], a[3]), sums_of_quarters(b[0], b[1], b[2], b[3])
    store(at, sum_of_quarters(of_a, of_b, sums_of_quarters(c[0], c[1], c[2], c[3]), of_d))


@njit(cache=True)
def mask(scores, begin, count):
    """Those of the first and last four that are before `begin` or not among `count` become -infinity."""
    for place in range(begin):
        scores[place:16:4] = -np.inf
    for place in range(count, (count + 3) // 4 * 4):
        scores[place // 4 * 16 + place % 4 : place // 4 * 16 + 16 : 4] = -np.inf


@njit(cache=True)
def raise_best(scores, count, best, scale):
    """`best` [4 heads, 4 times the same] becomes the largest of itself and of `count` scores; `scale` is what earlier
    weights are to be multiplied by. Returns the registers of both.
    """
    old = load(best)
    most = old
    for four in range((count + 3) // 4):
        most = maximum(load(scores + four * 64), most)
    most = maximum_in_quarters(most)
    store(best, most)
    later = power_of_two(subtract(old, most))
    store(scale, later)
    return most, later


@njit(cache=True)
def add_weights(total, sums, scale):
    """`total` [4 heads, 4 times the same] becomes `scale` times itself plus the weights in `sums`."""
    store(total, multiply_add(load(total), scale, sum_in_quarters(sums)))


@njit(cache=True)
def scaled(found, width, scale):
    """32 dimensions of each head, `width` bytes apart, times its scale: two registers each."""
    by = broadcast(scale)
    a = multiply(load(found), by), multiply(load(found + 64), by)
    found, by = found + width, broadcast(scale + 16)
    b = multiply(load(found), by), multiply(load(found + 64), by)
    found, by = found + width, broadcast(scale + 32)
    c = multiply(load(found), by), multiply(load(found + 64), by)
    found, by = found + width, broadcast(scale + 48)
    return a, b, c, (multiply(load(found), by), multiply(load(found + 64), by))


@njit(cache=True)
def store_found(found, width, a, b, c, d):
    """What `scaled` has begun with."""
    store_four((a[0], b[0], c[0], d[0]), found, width)
    store_four((a[1], b[1], c[1], d[1]), found + 64, width)
