"""Attention of a prompt's tile: in pairs by `pairs_tile`, or as floats by `float32_tile`, depending on the
arena's tag `_kv`.
"""

from typing import Any

from numba.extending import overload

from legato_engine.kernels.cpu.attention import float32_tile as floats
from legato_engine.kernels.cpu.attention import pairs_tile as pairs
from legato_engine.kernels.cpu.attention.kv_registers import widen
from legato_engine.kernels.tags import KV_BFLOAT16_PAIRS


def pack_queries(_kv: Any, _asked: Any, _dim: Any) -> None:
    """Packs queries float32 [dim, 32], in the order of registers, for `scores`."""


def scores(
    _kv: Any, _keys: Any, _addresses: Any, _count: Any, _dim: Any, _room: Any, _asked: Any, _scores: Any
) -> None:
    """Computes _scores float32 [count, 32] of `_count` positions; `_keys` are the addresses of 4 each.

    `_addresses` are memory for the addresses of widened keys, the next keys, and the distance of values from keys;
    `_room` is memory for the widened keys.
    """


def weigh(_kv: Any, _scores: Any, _count: Any, _best: Any, _total: Any, _scale: Any) -> None:
    """Converts scores to weights for `values`; `_scale` becomes the factor for earlier weights.

    _best and _total [32] are the largest score and the sum of weights of all positions so far.
    """


def values(
    _kv: Any,
    _keys: Any,
    _addresses: Any,
    _count: Any,
    _dim: Any,
    _room: Any,
    _weights: Any,
    _scale: Any,
    _weighted: Any,
) -> None:
    """`_weighted` float32 [dim, 32] becomes `_scale` times itself plus the weighted values of `_count` positions."""


@overload(pack_queries)
def _pack_queries(_kv, _asked, _dim):
    if _kv == KV_BFLOAT16_PAIRS.type:
        return lambda _kv, _asked, _dim: pairs.pack_queries(_asked, _dim)
    return lambda _kv, _asked, _dim: None


@overload(scores)
def _scores(_kv, _keys, _addresses, _count, _dim, _room, _asked, _scores):
    if _kv == KV_BFLOAT16_PAIRS.type:
        return _scores_of_pairs
    return _scores_of_floats


@overload(weigh)
def _weigh(_kv, _scores, _count, _best, _total, _scale):
    if _kv == KV_BFLOAT16_PAIRS.type:
        return lambda _kv, _scores, _count, _best, _total, _scale: pairs.weigh(_scores, _count, _best, _total, _scale)
    return lambda _kv, _scores, _count, _best, _total, _scale: floats.weigh(_scores, _count, _best, _total, _scale)


@overload(values)
def _values(_kv, _keys, _addresses, _count, _dim, _room, _weights, _scale, _weighted):
    if _kv == KV_BFLOAT16_PAIRS.type:
        return _values_of_pairs
    return _values_of_floats


def _scores_of_pairs(_kv, _keys, _addresses, _count, _dim, _room, _asked, _scores):
    _, following, to_values = _addresses
    pairs.scores(_keys, following, to_values, _count, _dim, _asked, _scores)


def _scores_of_floats(_kv, _keys, _addresses, _count, _dim, _room, _asked, _scores):
    numbers, following, to_values = _addresses
    widen(_kv, _keys, 0, _count, _dim, _room, numbers)
    floats.scores(_kv, numbers, following, to_values, _count, _dim, _asked, _scores)


def _values_of_pairs(_kv, _keys, _addresses, _count, _dim, _room, _weights, _scale, _weighted):
    pairs.values(_keys, _addresses[2], _count, _dim, _room, _weights, _scale, _weighted)


def _values_of_floats(_kv, _keys, _addresses, _count, _dim, _room, _weights, _scale, _weighted):
    numbers, _, to_values = _addresses
    widen(_kv, _keys, to_values, _count, _dim, _room, numbers)
    floats.values(numbers, _count, _dim, _weights, _scale, _weighted)
