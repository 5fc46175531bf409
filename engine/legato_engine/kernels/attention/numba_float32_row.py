"""What a decoding row computes: one query of four heads that share a KV head. See README.

Memory is given by address; queries and what was found are [4, dim], scores [positions / 4, 4 heads, 4 positions], so
that registers are full from the first sum to the last. What is read next is asked for meanwhile.
"""

import numpy as np
from numba import njit

from legato_engine.kernels.attention.numba_numbers import bytes_of, first, second
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


@njit(cache=True, inline="always")
def _add_products(query, k0, k1, k2, k3, s0, s1, s2, s3):
    by = load(query)
    return multiply_add(by, k0, s0), multiply_add(by, k1, s1), multiply_add(by, k2, s2), multiply_add(by, k3, s3)


@njit(cache=True)
def scores(kind, keys, to_values, count, dim, heads, asked, scores):
    """scores of `count` positions, rounded up to 4; `keys` are the addresses of 4 positions each, which hold numbers of
    `kind`, and `to_values` how far from them values are. Of more than 3 `heads`, 4 are computed.
    """
    size, width = bytes_of(kind), dim * bytes_of(kind)
    for four in range((count + 3) // 4):
        a0, b0, c0, d0, a1, b1, c1, d1 = zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()
        a2, b2, c2, d2, a3, b3, c3, d3 = zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()
        for part in range(0, dim, 32):
            key, a = keys[four] + part * size, asked + part * 4
            b, c, d = a + dim * 4, a + dim * 8, a + dim * 12
            for line in range(0, 128 * size, 64):
                prefetch(keys[four] + to_values + part * 4 * size + line)
            k0, k1 = first(kind, key), first(kind, key + width)
            k2, k3 = first(kind, key + 2 * width), first(kind, key + 3 * width)
            a0, a1, a2, a3 = _add_products(a, k0, k1, k2, k3, a0, a1, a2, a3)
            b0, b1, b2, b3 = _add_products(b, k0, k1, k2, k3, b0, b1, b2, b3)
            c0, c1, c2, c3 = _add_products(c, k0, k1, k2, k3, c0, c1, c2, c3)
            if heads > 3:
                d0, d1, d2, d3 = _add_products(d, k0, k1, k2, k3, d0, d1, d2, d3)
            k0, k1 = second(kind, key), second(kind, key + width)
            k2, k3 = second(kind, key + 2 * width), second(kind, key + 3 * width)
            a0, a1, a2, a3 = _add_products(a + 64, k0, k1, k2, k3, a0, a1, a2, a3)
            b0, b1, b2, b3 = _add_products(b + 64, k0, k1, k2, k3, b0, b1, b2, b3)
            c0, c1, c2, c3 = _add_products(c + 64, k0, k1, k2, k3, c0, c1, c2, c3)
            if heads > 3:
                d0, d1, d2, d3 = _add_products(d + 64, k0, k1, k2, k3, d0, d1, d2, d3)
        of_a, of_b = sums_of_quarters(a0, a1, a2, a3), sums_of_quarters(b0, b1, b2, b3)
        of_c, of_d = sums_of_quarters(c0, c1, c2, c3), sums_of_quarters(d0, d1, d2, d3)
        store(scores + four * 64, sum_of_quarters(of_a, of_b, of_c, of_d))


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
def values(kind, keys, following, to_values, count, dim, heads, weights, scale, found):
    """found becomes `scale` times itself plus the weighted values of `count` positions; `following` are the keys read
    next.
    """
    size, width = bytes_of(kind), dim * 4
    for part in range(0, dim, 32):
        at = found + part * 4
        by = broadcast(scale)
        a0, a1 = multiply(load(at), by), multiply(load(at + 64), by)
        by = broadcast(scale + 16)
        b0, b1 = multiply(load(at + width), by), multiply(load(at + width + 64), by)
        by = broadcast(scale + 32)
        c0, c1 = multiply(load(at + 2 * width), by), multiply(load(at + 2 * width + 64), by)
        by = broadcast(scale + 48)
        d0, d1 = multiply(load(at + 3 * width), by), multiply(load(at + 3 * width + 64), by)
        for four in range((count + 3) // 4):
            value, weight, ahead = (
                keys[four] + to_values + part * size,
                weights + four * 64,
                following[four] + part * 4 * size,
            )
            for _ in range(min(4, count - four * 4)):
                for i in range(0, 32 * size, 64):
                    prefetch(ahead + i)
                left, right = first(kind, value), second(kind, value)
                by = broadcast(weight)
                a0, a1 = multiply_add(by, left, a0), multiply_add(by, right, a1)
                by = broadcast(weight + 16)
                b0, b1 = multiply_add(by, left, b0), multiply_add(by, right, b1)
                by = broadcast(weight + 32)
                c0, c1 = multiply_add(by, left, c0), multiply_add(by, right, c1)
                if heads > 3:
                    by = broadcast(weight + 48)
                    d0, d1 = multiply_add(by, left, d0), multiply_add(by, right, d1)
                value += dim * size
                ahead += 32 * size
                weight += 4
        store(at, a0)
        store(at + 64, a1)
        store(at + width, b0)
        store(at + width + 64, b1)
        store(at + 2 * width, c0)
        store(at + 2 * width + 64, c1)
        store(at + 3 * width, d0)
        store(at + 3 * width + 64, d1)
