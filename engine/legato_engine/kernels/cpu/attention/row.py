"""Attention of a decoding row, for four heads that share a KV head: in pairs by `pairs_row`, or as floats by
`float32_row`, depending on the arena's tag `kv`.

Memory is given by address; queries and weighted values are [4, dim], scores [positions / 4, 4 heads, 4 positions], so
that registers are full from the first sum to the last. `keys` are the addresses of 4 positions each, `following` the
next ones, and `to_values` is the distance of values from their keys.
"""

from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload

from legato_engine.kernels.cpu.attention import float32_row as floats
from legato_engine.kernels.cpu.attention import pairs_row as pairs
from legato_engine.kernels.cpu.simd.bfloat16 import neighbours
from legato_engine.kernels.cpu.simd.bfloat16 import weight as rounded_weight
from legato_engine.kernels.cpu.simd.lanes import maximum, maximum_in_quarters, power_of_two, subtract, sum_in_quarters
from legato_engine.kernels.cpu.simd.vector import add, load, multiply_add, store, zero
from legato_engine.kernels.tags import KV_BFLOAT16_PAIRS


def pack_queries(_kv: Any, _queries: Any, _dim: Any, _lanes: Any) -> None:
    """Packs _queries float32 [lanes, dim], in the order of registers, for `scores`."""


def scores(_kv: Any, *_operands: Any) -> None:
    """Computes scores of `count` positions, rounded up to a multiple of 4, for 3 heads, or 4 if `heads` is above 3.

    Operands: keys, following, count, dim, heads, queries, scores.
    """


def values(_kv: Any, *_operands: Any) -> None:
    """`weighted` becomes `scale` times itself plus the weighted values of `count` positions. Operands: keys, following,
    to_values, count, dim, heads, weights, scale, weighted.
    """


def _weight(_kv: Any, _score: Any) -> Any:
    """Returns 2 to the power of each score (at most 0) twice: in the form for `values`, and for the sum of weights."""


@njit(cache=True)
def mask(scores, begin, count):
    """Sets scores of the first and last four positions to -infinity, before `begin` and from `count` on."""
    for place in range(begin):
        scores[place:16:4] = -np.inf
    for place in range(count, (count + 3) // 4 * 4):
        scores[place // 4 * 16 + place % 4 : place // 4 * 16 + 16 : 4] = -np.inf


@njit(cache=True)
def weigh(kv, scores, count, best, total, scale):
    """Converts scores to weights for `values`; `scale` becomes the factor for earlier weights.

    best and total [4 heads, 4 times the same] are the largest score and the sum of weights of all positions so far.
    """
    old = load(best)
    most = old
    for four in range((count + 3) // 4):
        most = maximum(load(scores + four * 64), most)
    most = maximum_in_quarters(most)
    store(best, most)
    later = power_of_two(subtract(old, most))
    store(scale, later)
    sums = zero()
    for four in range((count + 3) // 4):
        at = scores + four * 64
        weight, added = _weight(kv, subtract(load(at), most))
        store(at, weight)
        sums = add(sums, added)
    store(total, multiply_add(load(total), later, sum_in_quarters(sums)))


@overload(pack_queries)
def _pack_queries(_kv, _queries, _dim, _lanes):
    if _kv == KV_BFLOAT16_PAIRS.type:
        return lambda _kv, _queries, _dim, _lanes: pairs.pack_queries(_queries, _dim, _lanes)
    return lambda _kv, _queries, _dim, _lanes: None


@overload(scores)
def _scores(_kv, *_operands):
    if _kv == KV_BFLOAT16_PAIRS.type:
        return lambda _kv, *_operands: pairs.scores(*_operands)
    return lambda _kv, *_operands: floats.scores(_kv, *_operands)


@overload(values)
def _values(_kv, *_operands):
    if _kv == KV_BFLOAT16_PAIRS.type:
        return lambda _kv, *_operands: pairs.values(*_operands)
    return lambda _kv, *_operands: floats.values(_kv, *_operands)


@overload(_weight)
def _weight_of(_kv, _score):
    if _kv == KV_BFLOAT16_PAIRS.type:
        return _weight_of_pairs
    return _weight_of_floats


def _weight_of_pairs(_kv, _score):
    rounded = rounded_weight(_score)
    return neighbours(rounded), rounded


def _weight_of_floats(_kv, _score):
    power = power_of_two(_score)
    return power, power
