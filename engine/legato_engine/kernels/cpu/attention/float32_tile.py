"""Attention of a prompt's tile with keys and values multiplied as floats: 32 lanes that share a KV head, each one query
of one head. See `reference/attention.md`.

Memory is given by address; queries, scores and weighted values have 32 lanes in a line of 128 bytes.
"""

from numba import njit

from legato_engine.kernels.cpu.attention.kv_registers import bytes_of
from legato_engine.kernels.cpu.attention.tile_lanes import ask_for, no_sums, raise_best, scaled_sums, store_sums
from legato_engine.kernels.cpu.simd.lanes import multiply, power_of_two, subtract
from legato_engine.kernels.cpu.simd.vector import add, broadcast, load, multiply_add, store


@njit(cache=True)
def _add_products(sums, operands, at, distance):
    """To the sums of four numbers, `distance` bytes apart, adds their products with `operands`."""
    a, b, c, d = broadcast(at), broadcast(at + distance), broadcast(at + 2 * distance), broadcast(at + 3 * distance)
    return (
        multiply_add(operands[0], a, sums[0]), multiply_add(operands[1], a, sums[1]),
        multiply_add(operands[0], b, sums[2]), multiply_add(operands[1], b, sums[3]),
        multiply_add(operands[0], c, sums[4]), multiply_add(operands[1], c, sums[5]),
        multiply_add(operands[0], d, sums[6]), multiply_add(operands[1], d, sums[7]),
    )  # fmt: skip


@njit(cache=True)
def scores(kv, numbers, following, to_values, count, dim, queries, scores):
    """scores [count, 32] of `count` positions; queries [dim, 32]. `numbers` are the addresses of 4 keys each, in
    float32; `following` are the next ones, in an arena with the tag `kv`, and `to_values` is the distance of values
    from keys.
    """
    width = dim * 4
    last = (count - 1) // 4
    for four in range(0, last + 1, 2):
        ask_for(following, four, to_values, width * bytes_of(kv))
        left, right, query = numbers[four], numbers[min(four + 1, last)], queries
        early, late = no_sums(), no_sums()
        for _ in range(dim):
            operands = load(query), load(query + 64)
            early, late = _add_products(early, operands, left, width), _add_products(late, operands, right, width)
            query += 128
            left += 4
            right += 4
        store_sums(scores + four * 512, early, late)


@njit(cache=True)
def weigh(scores, count, best, total, scale):
    """Converts scores to weights. best and total [32] are of all positions so far; `scale` becomes the factor for
    earlier weights.
    """
    (best0, best1), (scale0, scale1) = raise_best(scores, count, best, scale)
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
def values(numbers, count, dim, weights, scale, weighted):
    """`weighted` [dim, 32] becomes `scale` times itself plus the weighted values of `count` positions; `numbers` are
    the addresses of 4 of them each, in float32.
    """
    scales = load(scale), load(scale + 64)
    for part in range(0, dim * 4, 32):
        at, weight = weighted + part * 32, weights
        early, late = scaled_sums(at, scales), scaled_sums(at + 512, scales)
        for four in range((count + 3) // 4):
            value = numbers[four] + part
            for _ in range(min(4, count - four * 4)):
                operands = load(weight), load(weight + 64)
                early, late = _add_products(early, operands, value, 4), _add_products(late, operands, value + 16, 4)
                weight += 128
                value += dim * 4
        store_sums(at, early, late)
