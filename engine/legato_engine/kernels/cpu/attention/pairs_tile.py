"""Attention of a prompt's tile by products of pairs of bfloat16 (AVX512-BF16), twice as many per instruction as of
floats, from an arena that holds bfloat16: 32 lanes that share a KV head, each one query of one head. See
`reference/attention.md`.

Memory is given by address. A word is two neighbouring bfloat16: two dimensions of a key, as the arena holds them; two
positions of values and weights. Sums are float32; weighted values are in the order of registers of `kv_registers`.
"""

from numba import njit

from legato_engine.kernels.cpu.attention.tile_lanes import ask_for, no_sums, raise_best, scaled_sums, store_sums
from legato_engine.kernels.cpu.simd.bfloat16 import narrowed, paired
from legato_engine.kernels.cpu.simd.lanes import multiply, power_of_two, subtract
from legato_engine.kernels.cpu.simd.vector import (
    add,
    broadcast,
    dot_bf16,
    interleave_high,
    interleave_low,
    load,
    store,
    zero,
)


@njit(cache=True)
def pack_queries(queries, dim):
    """queries float32 [dim, 32], in the order of registers, becomes words [dim / 2, 32], in the order of dimensions."""
    for part in range(0, dim, 32):
        for place in range(16):
            even, odd = queries + (part + place) * 128, queries + (part + place + 16) * 128
            first = paired(narrowed(load(even)), narrowed(load(odd)))
            second = paired(narrowed(load(even + 64)), narrowed(load(odd + 64)))
            # Where this part's words belong was read before: words take half the room.
            to = queries + (part // 2 + place) * 128
            store(to, first)
            store(to + 64, second)


@njit(cache=True)
def _add_products(sums, operands, at, distance):
    """To the sums of four words, `distance` bytes apart, adds the products of their halves with `operands`."""
    a, b, c, d = broadcast(at), broadcast(at + distance), broadcast(at + 2 * distance), broadcast(at + 3 * distance)
    return (
        dot_bf16(sums[0], operands[0], a), dot_bf16(sums[1], operands[1], a),
        dot_bf16(sums[2], operands[0], b), dot_bf16(sums[3], operands[1], b),
        dot_bf16(sums[4], operands[0], c), dot_bf16(sums[5], operands[1], c),
        dot_bf16(sums[6], operands[0], d), dot_bf16(sums[7], operands[1], d),
    )  # fmt: skip


@njit(cache=True)
def scores(keys, following, to_values, count, dim, queries, scores):
    """scores float32 [count, 32] of `count` positions; queries words [dim / 2, 32]. `keys` are the addresses of 4 keys
    each, `following` the next ones, and `to_values` is the distance of values from their keys.
    """
    width = dim * 2
    last = (count - 1) // 4
    for four in range(0, last + 1, 2):
        ask_for(following, four, to_values, width * 4)
        left, right, query = keys[four], keys[min(four + 1, last)], queries
        early, late = no_sums(), no_sums()
        for _ in range(dim // 2):
            operands = load(query), load(query + 64)
            early, late = _add_products(early, operands, left, width), _add_products(late, operands, right, width)
            query += 128
            left += 4
            right += 4
        store_sums(scores + four * 512, early, late)


@njit(cache=True)
def weigh(scores, count, best, total, scale):
    """Converts scores to weights, words [count / 2, 32] in their place; `total` becomes the sum of the rounded ones.
    best and total [32] are of all positions so far; `scale` becomes the factor for earlier weights. An odd count has
    one more weight, which is 0.
    """
    (best0, best1), (scale0, scale1) = raise_best(scores, count, best, scale)
    sum0, sum1 = multiply(load(total), scale0), multiply(load(total + 64), scale1)
    at, to = scores, scores
    for place in range(0, count, 2):
        first0 = narrowed(power_of_two(subtract(load(at), best0)))
        first1 = narrowed(power_of_two(subtract(load(at + 64), best1)))
        second0, second1 = zero(), zero()
        if place + 1 < count:
            second0 = narrowed(power_of_two(subtract(load(at + 128), best0)))
            second1 = narrowed(power_of_two(subtract(load(at + 192), best1)))
        store(to, paired(first0, second0))
        store(to + 64, paired(first1, second1))
        sum0, sum1 = add(sum0, add(first0, second0)), add(sum1, add(first1, second1))
        at += 256
        to += 128
    store(total, sum0)
    store(total + 64, sum1)


@njit(cache=True)
def _pair_values(keys, to_values, count, dim, room):
    """Words [count / 2, dim] in `room`: values of two positions. Memory beyond `count` may contain NaN."""
    width = dim * 2
    for place in range(0, count, 2):
        value = keys[place // 4] + to_values + place % 4 * width
        for line in range(0, width, 64):
            first, second = load(value + line), zero()
            if place + 1 < count:
                second = load(value + width + line)
            to = room + place * width + line * 2
            store(to, interleave_low(first, second))
            store(to + 64, interleave_high(first, second))


@njit(cache=True)
def values(keys, to_values, count, dim, room, weights, scale, weighted):
    """`weighted` float32 [dim, 32] becomes `scale` times itself plus the weighted values of `count` positions; `room`
    is memory for their pairs.
    """
    _pair_values(keys, to_values, count, dim, room)
    scales = load(scale), load(scale + 64)
    for row in range(0, dim, 8):
        # Of 32 dimensions, 16 even rows are before 16 odd ones.
        first = row // 32 * 32 + row % 16 * 2 + row % 32 // 16
        at, weight, value = weighted + row * 128, weights, room + first * 4
        early, late = scaled_sums(at, scales), scaled_sums(at + 512, scales)
        for _ in range(0, count, 2):
            operands = load(weight), load(weight + 64)
            early, late = _add_products(early, operands, value, 8), _add_products(late, operands, value + 32, 8)
            weight += 128
            value += dim * 4
        store_sums(at, early, late)
