"""Attention of a decoding row by products of pairs of bfloat16 (AVX512-BF16), from an arena that holds bfloat16: one
query of four heads that share a KV head. See `reference/attention.md`.

Memory is given by address, laid out as in `row`. A word is two neighbouring bfloat16: two dimensions of queries
and keys, as the arena holds them; two positions of values and weights. Queries and weights are rounded, sums are
float32; weighted values are in the order of registers of `kv_registers`.
"""

from numba import njit

from legato_engine.kernels.cpu.attention.row_lanes import ask_for, no_sums, scaled, store_scores, store_weighted
from legato_engine.kernels.cpu.simd.bfloat16 import even_pairs, narrowed, odd_pairs, paired
from legato_engine.kernels.cpu.simd.vector import broadcast, dot_bf16, load, store, zero


@njit(cache=True)
def pack_queries(queries, dim, lanes):
    """queries float32 [lanes, dim], in the order of registers, becomes words [lanes, dim / 2] in the order of
    dimensions, as far apart.
    """
    for lane in range(lanes):
        row = queries + lane * dim * 4
        for part in range(0, dim, 32):
            # Where this part's words belong was read before: words take half the room.
            store(row + part * 2, paired(narrowed(load(row + part * 4)), narrowed(load(row + part * 4 + 64))))


@njit(cache=True, inline="always")
def _add_products(query, keys, sums):
    """To the sums of four keys, adds the products of 32 numbers of a query."""
    operand = load(query)
    return (
        dot_bf16(sums[0], operand, keys[0]),
        dot_bf16(sums[1], operand, keys[1]),
        dot_bf16(sums[2], operand, keys[2]),
        dot_bf16(sums[3], operand, keys[3]),
    )


@njit(cache=True)
def scores(keys, following, count, dim, heads, queries, scores):
    """scores of `count` positions, rounded up to 4; `keys` are the addresses of 4 keys each, and `following` the
    next ones. Of more than 3 `heads`, 4 are computed.
    """
    width = dim * 2
    for four in range((count + 3) // 4):
        a, b, c, d = no_sums(), no_sums(), no_sums(), no_sums()
        for part in range(0, dim, 32):
            key, query = keys[four] + part * 2, queries + part * 2
            ask_for(following[four] + part * 8, 256)
            of = load(key), load(key + width), load(key + 2 * width), load(key + 3 * width)
            a, b = _add_products(query, of, a), _add_products(query + dim * 4, of, b)
            c = _add_products(query + dim * 8, of, c)
            if heads > 3:
                d = _add_products(query + dim * 12, of, d)
        store_scores(scores + four * 64, heads, a, b, c, d)


@njit(cache=True, inline="always")
def _add_values(weights, values, weighted):
    operand = broadcast(weights)
    return dot_bf16(weighted[0], operand, values[0]), dot_bf16(weighted[1], operand, values[1])


@njit(cache=True)
def values(keys, following, to_values, count, dim, heads, weights, scale, weighted):
    """`weighted` becomes `scale` times itself plus the weighted values of `count` positions; `following` are the next
    keys, and `to_values` is the distance of values from their keys.
    """
    for part in range(0, dim, 32):
        a, b, c, d = scaled(weighted + part * 4, dim * 4, scale)
        for place in range(0, count, 2):
            four, of_four = place // 4, place % 4
            value, at = keys[four] + to_values + (of_four * dim + part) * 2, weights + four * 64 + of_four * 4
            ask_for(following[four] + to_values + part * 8 + of_four * 64, 128)
            early, late = load(value), zero()
            if place + 1 < count:  # memory beyond may contain NaN
                late = load(value + dim * 2)
            of = even_pairs(early, late), odd_pairs(early, late)
            a, b, c = _add_values(at, of, a), _add_values(at + 16, of, b), _add_values(at + 32, of, c)
            if heads > 3:
                d = _add_values(at + 48, of, d)
        store_weighted(weighted + part * 4, dim * 4, a, b, c, d)
