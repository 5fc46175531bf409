"""What a decoding row computes: one query of four heads that share a KV head. See README.

Memory is given by address; queries and what was found are [4, dim], scores [positions / 4, 4 heads, 4 positions], so
that registers are full from the first sum to the last. What is read next is asked for meanwhile.
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
from legato_engine.kernels.vector import add, broadcast, load, multiply_add, store, zero


@njit(cache=True)
def scores(keys, to_values, count, dim, asked, scores):
    """scores of `count` positions, rounded up to 4; `keys` are the addresses of 4 positions each."""
    width = dim * 4
    for four in range((count + 3) // 4):
        key, following = keys[four], keys[four] + to_values
        a0, b0, c0, d0, a1, b1, c1, d1 = zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()
        a2, b2, c2, d2, a3, b3, c3, d3 = zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()
        for part in range(0, width, 64):
            for i in range(4):
                prefetch(following + part * 4 + i * 64)
            k0, k1 = load(key + part), load(key + width + part)
            k2, k3 = load(key + 2 * width + part), load(key + 3 * width + part)
            query = load(asked + part)
            a0, a1 = multiply_add(query, k0, a0), multiply_add(query, k1, a1)
            a2, a3 = multiply_add(query, k2, a2), multiply_add(query, k3, a3)
            query = load(asked + width + part)
            b0, b1 = multiply_add(query, k0, b0), multiply_add(query, k1, b1)
            b2, b3 = multiply_add(query, k2, b2), multiply_add(query, k3, b3)
            query = load(asked + 2 * width + part)
            c0, c1 = multiply_add(query, k0, c0), multiply_add(query, k1, c1)
            c2, c3 = multiply_add(query, k2, c2), multiply_add(query, k3, c3)
            query = load(asked + 3 * width + part)
            d0, d1 = multiply_add(query, k0, d0), multiply_add(query, k1, d1)
            d2, d3 = multiply_add(query, k2, d2), multiply_add(query, k3, d3)
        a, b = sums_of_quarters(a0, a1, a2, a3), sums_of_quarters(b0, b1, b2, b3)
        c, d = sums_of_quarters(c0, c1, c2, c3), sums_of_quarters(d0, d1, d2, d3)
        store(scores + four * 64, sum_of_quarters(a, b, c, d))


@njit(cache=True)
def mask(scores, begin, count):
    """Those of the first and last four that are before `begin` or not among `count` become -infinity."""
    for place in range(begin):
        scores[place:16:4] = -np.inf
    for place in range(count, (count + 3) // 4 * 4):
        scores[place // 4 * 16 + place % 4 : place // 4 * 16 + 16 : 4] = -np.inf


@njit(cache=True)
def weigh(scores, count, best, total, scale):
    """Scores to weights. best and total [4 heads, 4 times the same] are of all positions so far; earlier weights are to
    be multiplied by `scale`.
    """
    old = load(best)
    most = old
    for four in range((count + 3) // 4):
        most = maximum(load(scores + four * 64), most)
    most = maximum_in_quarters(most)
    store(best, most)
    later = power_of_two(subtract(old, most))
    store(scale, later)
    sum_ = zero()
    for four in range((count + 3) // 4):
        at = scores + four * 64
        weight = power_of_two(subtract(load(at), most))
        store(at, weight)
        sum_ = add(sum_, weight)
    store(total, multiply_add(load(total), later, sum_in_quarters(sum_)))


@njit(cache=True)
def values(keys, following, to_values, count, dim, weights, scale, found):
    """found becomes `scale` times itself plus the weighted values of `count` positions; `following` are the keys read
    next.
    """
    width = dim * 4
    for part in range(0, width, 128):
        at = found + part
        by = broadcast(scale)
        a0, a1 = multiply(load(at), by), multiply(load(at + 64), by)
        by = broadcast(scale + 16)
        b0, b1 = multiply(load(at + width), by), multiply(load(at + width + 64), by)
        by = broadcast(scale + 32)
        c0, c1 = multiply(load(at + 2 * width), by), multiply(load(at + 2 * width + 64), by)
        by = broadcast(scale + 48)
        d0, d1 = multiply(load(at + 3 * width), by), multiply(load(at + 3 * width + 64), by)
        for four in range((count + 3) // 4):
            value, weight, ahead = keys[four] + to_values + part, weights + four * 64, following[four] + part * 4
            for _ in range(min(4, count - four * 4)):
                prefetch(ahead)
                prefetch(ahead + 64)
                left, right = load(value), load(value + 64)
                by = broadcast(weight)
                a0, a1 = multiply_add(by, left, a0), multiply_add(by, right, a1)
                by = broadcast(weight + 16)
                b0, b1 = multiply_add(by, left, b0), multiply_add(by, right, b1)
                by = broadcast(weight + 32)
                c0, c1 = multiply_add(by, left, c0), multiply_add(by, right, c1)
                by = broadcast(weight + 48)
                d0, d1 = multiply_add(by, left, d0), multiply_add(by, right, d1)
                value += width
                ahead += 128
                weight += 4
        store(at, a0)
        store(at + 64, a1)
        store(at + width, b0)
        store(at + width + 64, b1)
        store(at + 2 * width, c0)
        store(at + 2 * width + 64, c1)
        store(at + 3 * width, d0)
        store(at + 3 * width + 64, d1)
