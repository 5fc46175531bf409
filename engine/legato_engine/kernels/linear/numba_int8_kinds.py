"""Which products of bytes a kernel is compiled with, by the type of `_kind`. It is any number of the type in which they
are added: int32 with AVX-512 VNNI, int16 with AVX2 alone, which takes codes of 4 bits only.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from legato_engine.kernels.linear import numba_int8_pairs as pairs
from legato_engine.kernels.linear import numba_int8_rows as rows
from legato_engine.kernels.linear import numba_int8_tile as tile

VNNI, AVX2 = np.int32(0), np.int16(0)


def one_row(_kind: Any, *_given: Any) -> None:
    """See `numba_int8_rows.one_row`."""


def eight_rows(_kind: Any, *_given: Any) -> None:
    """See `numba_int8_rows.eight_rows`."""


def half_block(_kind: Any, *_given: Any) -> None:
    """See `numba_int8_tile.half_block`."""


@overload(one_row)
def _one_row(_kind, *_given):
    if _kind == types.int16:
        return lambda _kind, *_given: pairs.one_row(*_given)
    return lambda _kind, *_given: rows.one_row(*_given)


@overload(eight_rows)
def _eight_rows(_kind, *_given):
    if _kind == types.int16:
        return lambda _kind, *_given: pairs.eight_rows(*_given)
    return lambda _kind, *_given: rows.eight_rows(*_given)


@overload(half_block)
def _half_block(_kind, *_given):
    if _kind == types.int16:
        return lambda _kind, *_given: pairs.half_block(*_given)
    return lambda _kind, *_given: tile.half_block(*_given)
