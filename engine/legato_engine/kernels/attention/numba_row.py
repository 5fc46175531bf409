"""What a decoding row computes, by how the arena's numbers are to be multiplied: in pairs, by `numba_pairs_row`, or as
floats, by `numba_float32_row`. `_kind` is any number of the arena's type.
"""

from typing import Any

from numba import types
from numba.extending import overload

from legato_engine.kernels.attention import numba_float32_row as floats
from legato_engine.kernels.attention import numba_pairs_row as pairs


def pack_queries(_kind: Any, _asked: Any, _dim: Any, _lanes: Any) -> None:
    """Queries float32 [lanes, dim], in the order of registers, become what `scores` takes."""


def scores(
    _kind: Any, _keys: Any, _following: Any, _count: Any, _dim: Any, _heads: Any, _asked: Any, _scores: Any
) -> None:
    """_scores float32 [positions / 4, 4 heads, 4 positions] of `_count` positions, rounded up to 4; `_keys` are the
    addresses of 4 positions each, and `_to_values` how far from them values are. Of more than 3 `_heads`, 4 are
    computed.
    """


def weigh(_kind: Any, _scores: Any, _count: Any, _best: Any, _total: Any, _scale: Any) -> None:
    """Scores to weights, which `values` takes. _best and _total [4 heads, 4 times the same] are of all positions so
    far; earlier weights are to be multiplied by `_scale`.
    """


def values(
    _kind: Any,
    _keys: Any,
    _following: Any,
    _to_values: Any,
    _count: Any,
    _dim: Any,
    _heads: Any,
    _weights: Any,
    _scale: Any,
    _found: Any,
) -> None:
    """_found float32 [4, dim] becomes `_scale` times itself plus the weighted values of `_count` positions;
    `_following` are the keys read next.
    """


@overload(pack_queries)
def _pack_queries(_kind, _asked, _dim, _lanes):
    if _kind == types.int16:
        return lambda _kind, _asked, _dim, _lanes: pairs.pack_queries(_asked, _dim, _lanes)
    return lambda _kind, _asked, _dim, _lanes: None


@overload(scores)
def _scores(_kind, _keys, _following, _count, _dim, _heads, _asked, _scores):
    if _kind == types.int16:
        return _scores_of_pairs
    return _scores_of_floats


@overload(weigh)
def _weigh(_kind, _scores, _count, _best, _total, _scale):
    if _kind == types.int16:
        return lambda _kind, _scores, _count, _best, _total, _scale: pairs.weigh(_scores, _count, _best, _total, _scale)
    return lambda _kind, _scores, _count, _best, _total, _scale: floats.weigh(_scores, _count, _best, _total, _scale)


@overload(values)
def _values(_kind, _keys, _following, _to_values, _count, _dim, _heads, _weights, _scale, _found):
    if _kind == types.int16:
        return _values_of_pairs
    return _values_of_floats


def _scores_of_pairs(_kind, _keys, _following, _count, _dim, _heads, _asked, _scores):
    pairs.scores(_keys, _following, _count, _dim, _heads, _asked, _scores)


def _scores_of_floats(_kind, _keys, _following, _count, _dim, _heads, _asked, _scores):
    floats.scores(_kind, _keys, _following, _count, _dim, _heads, _asked, _scores)


def _values_of_pairs(_kind, _keys, _following, _to_values, _count, _dim, _heads, _weights, _scale, _found):
    pairs.values(_keys, _following, _to_values, _count, _dim, _heads, _weights, _scale, _found)


def _values_of_floats(_kind, _keys, _following, _to_values, _count, _dim, _heads, _weights, _scale, _found):
    floats.values(_kind, _keys, _following, _to_values, _count, _dim, _heads, _weights, _scale, _found)
