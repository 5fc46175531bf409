"""What a tile of a prompt computes: 32 lanes that share a KV head, each one query of one head. See README.

Memory is given by address; queries, scores and what was found have 32 lanes in a line of 128 bytes. Two registers of
lanes times eight numbers of KV are 16 sums, which fill both units for products.
"""

import numpy as np
from numba import njit

from legato_engine.kernels.attention.numba_numbers import bytes_of
from legato_engine.kernels.lanes import maximum, multiply, power_of_two, prefetch, subtract
from legato_engine.kernels.scalar import RELAXED
from legato_engine.kernels.vector import add, broadcast, load, multiply_add, store, zero

LANES = 32


@njit(cache=True)
def scores(kind, numbers, following, to_values, count, dim, asked, scores):
    """scores [count, 32] of `count` positions; asked [dim, 32]. `numbers` are the addresses of 4 keys each, in float32;
    `following` those of what is read next, which the arena holds as `kind`, and `to_values` how far from them values
    are.
    """
    width = dim * 4
    last = (count - 1) // 4
    for four in range(0, last + 1, 2):
        left, right = numbers[four], numbers[min(four + 1, last)]
        for line in range(0, width * bytes_of(kind), 64):
            prefetch(following[four] + line)
            prefetch(following[four] + to_values + line)
            prefetch(following[four + 1] + line)
            prefetch(following[four + 1] + to_values + line)
        query = asked
        a0, b0, c0, d0, e0, f0, g0, h0 = zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()
        a1, b1, c1, d1, e1, f1, g1, h1 = zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()
        for _ in range(dim):
            by0, by1 = load(query), load(query + 64)
            key = broadcast(left)
            a0, a1 = multiply_add(by0, key, a0), multiply_add(by1, key, a1)
            key = broadcast(left + width)
            b0, b1 = multiply_add(by0, key, b0), multiply_add(by1, key, b1)
            key = broadcast(left + 2 * width)
            c0, c1 = multiply_add(by0, key, c0), multiply_add(by1, key, c1)
            key = broadcast(left + 3 * width)
            d0, d1 = multiply_add(by0, key, d0), multiply_add(by1, key, d1)
            key = broadcast(right)
            e0, e1 = multiply_add(by0, key, e0), multiply_add(by1, key, e1)
            key = broadcast(right + width)
            f0, f1 = multiply_add(by0, key, f0), multiply_add(by1, key, f1)
            key = broadcast(right + 2 * width)
            g0, g1 = multiply_add(by0, key, g0), multiply_add(by1, key, g1)
            key = broadcast(right + 3 * width)
            h0, h1 = multiply_add(by0, key, h0), multiply_add(by1, key, h1)
            query += 128
            left += 4
            right += 4
        at = scores + four * 512
        store(at, a0)
        store(at + 64, a1)
        store(at + 128, b0)
        store(at + 192, b1)
        store(at + 256, c0)
        store(at + 320, c1)
        store(at + 384, d0)
        store(at + 448, d1)
        store(at + 512, e0)
        store(at + 576, e1)
        store(at + 640, f0)
        store(at + 704, f1)
        store(at + 768, g0)
        store(at + 832, g1)
        store(at + 896, h0)
        store(at + 960, h1)


@njit(cache=True, fastmath=RELAXED)
def mask(scores, first, count, begins, ends):
    """scores [count, 32] of positions `first …`: what a lane does not see becomes -infinity."""
    for place in range(count):
        line = scores[place]
        for lane in range(LANES):
            seen = (begins[lane] <= first + place) & (first + place < ends[lane])
            line[lane] = line[lane] if seen else np.float32(-np.inf)


@njit(cache=True)
def weigh(scores, count, best, total, scale):
    """Scores to weights. best and total [32] are of all positions so far; earlier weights are to be multiplied by
    `scale`.
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
    sum0, sum1 = multiply(load(total), scale0), multiply(load(total + 64), scale1)
    at = scores
    for _ in range(count):
        weight0, weight1 = power_of_two(subtract(load(at), best0)), power_of_two(subtract(load(at + 64), best1))
        store(at, weight0)
        store(at + 64, weight1)
        sum0, sum1 = add(sum0, weight0), add(sum1, weight1)
        at += 128
    store(total, sum0)
    store(total + 64, sum1)


@njit(cache=True)
def values(numbers, count, dim, weights, scale, found):
    """found [dim, 32] becomes `scale` times itself plus the weighted values of `count` positions; `numbers` are the
    addresses of 4 of them each, in float32.
    """
    scale0, scale1 = load(scale), load(scale + 64)
    for part in range(0, dim * 4, 32):
        at = found + part * 32
        a0, a1 = multiply(load(at), scale0), multiply(load(at + 64), scale1)
        b0, b1 = multiply(load(at + 128), scale0), multiply(load(at + 192), scale1)
        c0, c1 = multiply(load(at + 256), scale0), multiply(load(at + 320), scale1)
        d0, d1 = multiply(load(at + 384), scale0), multiply(load(at + 448), scale1)
        e0, e1 = multiply(load(at + 512), scale0), multiply(load(at + 576), scale1)
        f0, f1 = multiply(load(at + 640), scale0), multiply(load(at + 704), scale1)
        g0, g1 = multiply(load(at + 768), scale0), multiply(load(at + 832), scale1)
        h0, h1 = multiply(load(at + 896), scale0), multiply(load(at + 960), scale1)
        weight = weights
        for four in range((count + 3) // 4):
            value = numbers[four] + part
            for _ in range(min(4, count - four * 4)):
                by0, by1 = load(weight), load(weight + 64)
                number = broadcast(value)
                a0, a1 = multiply_add(by0, number, a0), multiply_add(by1, number, a1)
                number = broadcast(value + 4)
                b0, b1 = multiply_add(by0, number, b0), multiply_add(by1, number, b1)
                number = broadcast(value + 8)
                c0, c1 = multiply_add(by0, number, c0), multiply_add(by1, number, c1)
                number = broadcast(value + 12)
                d0, d1 = multiply_add(by0, number, d0), multiply_add(by1, number, d1)
                number = broadcast(value + 16)
                e0, e1 = multiply_add(by0, number, e0), multiply_add(by1, number, e1)
                number = broadcast(value + 20)
                f0, f1 = multiply_add(by0, number, f0), multiply_add(by1, number, f1)
                number = broadcast(value + 24)
                g0, g1 = multiply_add(by0, number, g0), multiply_add(by1, number, g1)
                number = broadcast(value + 28)
                h0, h1 = multiply_add(by0, number, h0), multiply_add(by1, number, h1)
                weight += 128
                value += dim * 4
        store(at, a0)
        store(at + 64, a1)
        store(at + 128, b0)
        store(at + 192, b1)
        store(at + 256, c0)
        store(at + 320, c1)
        store(at + 384, d0)
        store(at + 448, d1)
        store(at + 512, e0)
        store(at + 576, e1)
        store(at + 640, f0)
        store(at + 704, f1)
        store(at + 768, g0)
        store(at + 832, g1)
        store(at + 896, h0)
        store(at + 960, h1)
