"""What a tile of a prompt computes where the arena holds bfloat16 and the processor multiplies pairs of it
(AVX512-BF16), twice as many at a time as floats: 32 lanes that share a KV head, each one query of one head. See README.

Memory is given by address. A word is two neighbouring bfloat16: of a key two dimensions, as the arena holds them; of
values and weights two positions. Sums are float32; what a tile finds stands in the order of registers that
`numba_numbers` tells of.
"""

from typing import Any

from llvmlite import ir
from numba import njit
from numba.extending import intrinsic

from legato_engine.kernels.lanes import maximum, multiply, power_of_two, prefetch, subtract
from legato_engine.kernels.vector import (
    REGISTER,
    add,
    broadcast,
    dot_bf16,
    interleave_high,
    interleave_low,
    load,
    store,
    zero,
)

_WORDS = ir.VectorType(ir.IntType(32), 16)


def _all(word: int) -> ir.Constant:
    return ir.Constant(_WORDS, [word] * 16)


@intrinsic
def _narrowed(_context: Any, value: Any) -> Any:
    """16 floats, rounded to bfloat16, ties to even; still floats. What is no number stays none."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        even = builder.and_(builder.lshr(values[0], _all(16)), _all(1))
        rounded = builder.add(values[0], builder.add(even, _all(0x7FFF)))
        size = builder.and_(values[0], _all(0x7FFFFFFF))
        none = builder.icmp_unsigned(">", size, _all(0x7F800000))
        return builder.and_(builder.select(none, builder.or_(values[0], _all(0x400000)), rounded), _all(0xFFFF0000))

    return REGISTER(REGISTER), emit


@intrinsic
def _paired(_context: Any, first: Any, second: Any) -> Any:
    """The upper halves of two registers, in one: `first` in the lower halves."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.or_(builder.lshr(values[0], _all(16)), builder.and_(values[1], _all(0xFFFF0000)))

    return REGISTER(REGISTER, REGISTER), emit


@njit(cache=True)
def pack_queries(asked, dim):
    """asked float32 [dim, 32], in the order of registers, becomes words [dim / 2, 32], in the order of dimensions."""
    for part in range(0, dim, 32):
        for place in range(16):
            even, odd = asked + (part + place) * 128, asked + (part + place + 16) * 128
            first = _paired(_narrowed(load(even)), _narrowed(load(odd)))
            second = _paired(_narrowed(load(even + 64)), _narrowed(load(odd + 64)))
            # Where this part's words belong was read before: words take half the room.
            to = asked + (part // 2 + place) * 128
            store(to, first)
            store(to + 64, second)


@njit(cache=True)
def scores(keys, following, to_values, count, dim, asked, scores):
    """scores float32 [count, 32] of `count` positions; asked words [dim / 2, 32]. `keys` are the addresses of 4 keys
    each; `following` those of what is read next, and `to_values` how far from them values are.
    """
    width = dim * 2
    last = (count - 1) // 4
    for four in range(0, last + 1, 2):
        left, right = keys[four], keys[min(four + 1, last)]
        for line in range(0, width * 4, 64):
            prefetch(following[four] + line)
            prefetch(following[four] + to_values + line)
            prefetch(following[four + 1] + line)
            prefetch(following[four + 1] + to_values + line)
        query = asked
        a0, b0, c0, d0, e0, f0, g0, h0 = zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()
        a1, b1, c1, d1, e1, f1, g1, h1 = zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()
        for _ in range(dim // 2):
            by0, by1 = load(query), load(query + 64)
            key = broadcast(left)
            a0, a1 = dot_bf16(a0, by0, key), dot_bf16(a1, by1, key)
            key = broadcast(left + width)
            b0, b1 = dot_bf16(b0, by0, key), dot_bf16(b1, by1, key)
            key = broadcast(left + 2 * width)
            c0, c1 = dot_bf16(c0, by0, key), dot_bf16(c1, by1, key)
            key = broadcast(left + 3 * width)
            d0, d1 = dot_bf16(d0, by0, key), dot_bf16(d1, by1, key)
            key = broadcast(right)
            e0, e1 = dot_bf16(e0, by0, key), dot_bf16(e1, by1, key)
            key = broadcast(right + width)
            f0, f1 = dot_bf16(f0, by0, key), dot_bf16(f1, by1, key)
            key = broadcast(right + 2 * width)
            g0, g1 = dot_bf16(g0, by0, key), dot_bf16(g1, by1, key)
            key = broadcast(right + 3 * width)
            h0, h1 = dot_bf16(h0, by0, key), dot_bf16(h1, by1, key)
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


@njit(cache=True)
def weigh(scores, count, best, total, scale):
    """Scores to weights, words [count / 2, 32] in their place, and `total` the sum of the rounded ones. best and total
    [32] are of all positions so far; earlier weights are to be multiplied by `scale`. An odd count has one more weight,
    which is 0.
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
    at, to = scores, scores
    for place in range(0, count, 2):
        first0 = _narrowed(power_of_two(subtract(load(at), best0)))
        first1 = _narrowed(power_of_two(subtract(load(at + 64), best1)))
        second0, second1 = zero(), zero()
        if place + 1 < count:
            second0 = _narrowed(power_of_two(subtract(load(at + 128), best0)))
            second1 = _narrowed(power_of_two(subtract(load(at + 192), best1)))
        store(to, _paired(first0, second0))
        store(to + 64, _paired(first1, second1))
        sum0, sum1 = add(sum0, add(first0, second0)), add(sum1, add(first1, second1))
        at += 256
        to += 128
    store(total, sum0)
    store(total + 64, sum1)


@njit(cache=True)
def _pair_values(keys, to_values, count, dim, room):
    """Words [count / 2, dim] in `room`: values of two positions. What lies beyond `count` may be no number."""
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
def values(keys, to_values, count, dim, room, weights, scale, found):
    """found float32 [dim, 32] becomes `scale` times itself plus the weighted values of `count` positions."""
    _pair_values(keys, to_values, count, dim, room)
    scale0, scale1 = load(scale), load(scale + 64)
    for row in range(0, dim, 8):
        # Of 32 dimensions, 16 even rows are before 16 odd ones.
        first = row // 32 * 32 + row % 16 * 2 + row % 32 // 16
        at = found + row * 128
        a0, a1 = multiply(load(at), scale0), multiply(load(at + 64), scale1)
        b0, b1 = multiply(load(at + 128), scale0), multiply(load(at + 192), scale1)
        c0, c1 = multiply(load(at + 256), scale0), multiply(load(at + 320), scale1)
        d0, d1 = multiply(load(at + 384), scale0), multiply(load(at + 448), scale1)
        e0, e1 = multiply(load(at + 512), scale0), multiply(load(at + 576), scale1)
        f0, f1 = multiply(load(at + 640), scale0), multiply(load(at + 704), scale1)
        g0, g1 = multiply(load(at + 768), scale0), multiply(load(at + 832), scale1)
        h0, h1 = multiply(load(at + 896), scale0), multiply(load(at + 960), scale1)
        weight, value = weights, room + first * 4
        for _ in range(0, count, 2):
            by0, by1 = load(weight), load(weight + 64)
            number = broadcast(value)
            a0, a1 = dot_bf16(a0, by0, number), dot_bf16(a1, by1, number)
            number = broadcast(value + 8)
            b0, b1 = dot_bf16(b0, by0, number), dot_bf16(b1, by1, number)
            number = broadcast(value + 16)
            c0, c1 = dot_bf16(c0, by0, number), dot_bf16(c1, by1, number)
            number = broadcast(value + 24)
            d0, d1 = dot_bf16(d0, by0, number), dot_bf16(d1, by1, number)
            number = broadcast(value + 32)
            e0, e1 = dot_bf16(e0, by0, number), dot_bf16(e1, by1, number)
            number = broadcast(value + 40)
            f0, f1 = dot_bf16(f0, by0, number), dot_bf16(f1, by1, number)
            number = broadcast(value + 48)
            g0, g1 = dot_bf16(g0, by0, number), dot_bf16(g1, by1, number)
            number = broadcast(value + 56)
            h0, h1 = dot_bf16(h0, by0, number), dot_bf16(h1, by1, number)
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
