"""Attention of a decoding row in float32: one query of four heads that share a KV head. See `reference/attention.md`.

Memory is given by address; queries are [4, dim], other layouts are in `row`.
"""

from numba import njit

from legato_engine.kernels.cpu.attention.kv_registers import bytes_of, first, second
from legato_engine.kernels.cpu.attention.row_lanes import ask_for, no_sums, scaled, store_scores, store_weighted
from legato_engine.kernels.cpu.simd.vector import broadcast, load, multiply_add


@njit(cache=True, inline="always")
def _add_products(query, keys, sums):
    """To the sums of four keys, adds the products of 16 numbers of a query."""
    operand = load(query)
    return (
        multiply_add(operand, keys[0], sums[0]),
        multiply_add(operand, keys[1], sums[1]),
        multiply_add(operand, keys[2], sums[2]),
        multiply_add(operand, keys[3], sums[3]),
    )


@njit(cache=True)
def scores(kv, keys, following, count, dim, heads, queries, scores):
    """scores of `count` positions, rounded up to 4; `keys` are the addresses of 4 positions each, in an arena with
    the tag `kv`, and `following` the next ones. Of more than 3 `heads`, 4 are computed.
    """
    size, width = bytes_of(kv), dim * bytes_of(kv)
    for four in range((count + 3) // 4):
        a, b, c, d = no_sums(), no_sums(), no_sums(), no_sums()
        for part in range(0, dim, 32):
            key, query = keys[four] + part * size, queries + part * 4
            ask_for(following[four] + part * 4 * size, 128 * size)
            of = first(kv, key), first(kv, key + width), first(kv, key + 2 * width), first(kv, key + 3 * width)
            a, b = _add_products(query, of, a), _add_products(query + dim * 4, of, b)
            c = _add_products(query + dim * 8, of, c)
            if heads > 3:
                d = _add_products(query + dim * 12, of, d)
            query += 64
            of = (
                second(kv, key),
                second(kv, key + width),
                second(kv, key + 2 * width),
                second(kv, key + 3 * width),
            )
            a, b = _add_products(query, of, a), _add_products(query + dim * 4, of, b)
            c = _add_products(query + dim * 8, of, c)
            if heads > 3:
                d = _add_products(query + dim * 12, of, d)
        store_scores(scores + four * 64, heads, a, b, c, d)


@njit(cache=True, inline="always")
def _add_values(weight, values, weighted):
    operand = broadcast(weight)
    return multiply_add(operand, values[0], weighted[0]), multiply_add(operand, values[1], weighted[1])


@njit(cache=True)
def values(kv, keys, following, to_values, count, dim, heads, weights, scale, weighted):
    """`weighted` becomes `scale` times itself plus the weighted values of `count` positions; `following` are the next
    keys, and `to_values` is the distance of values from their keys.
    """
    size = bytes_of(kv)
    for part in range(0, dim, 32):
        a, b, c, d = scaled(weighted + part * 4, dim * 4, scale)
        for four in range((count + 3) // 4):
            value, weight = keys[four] + to_values + part * size, weights + four * 64
            ask_for(following[four] + to_values + part * 4 * size, 128 * size)
            for _ in range(min(4, count - four * 4)):
                of = first(kv, value), second(kv, value)
                a, b = _add_values(weight, of, a), _add_values(weight + 16, of, b)
                c = _add_values(weight + 32, of, c)
                if heads > 3:
                    d = _add_values(weight + 48, of, d)
                value += dim * size
                weight += 4
        store_weighted(weighted + part * 4, dim * 4, a, b, c, d)
