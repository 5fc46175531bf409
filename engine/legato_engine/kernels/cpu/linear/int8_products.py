"""Products of bytes by the instructions that a kernel is compiled for. `_family` is the tag VNNI or AVX2, which is for
codes of 4 bits only; with any other, kernels cannot be compiled.
"""

from typing import Any

from numba.extending import overload

from legato_engine.kernels.cpu.linear import int8_pairs as pairs
from legato_engine.kernels.cpu.linear import int8_rows as rows
from legato_engine.kernels.cpu.linear import int8_tile as tile
from legato_engine.kernels.tags import AVX2, VNNI


def one_row(_family: Any, *_operands: Any) -> None:
    """See `int8_rows.one_row`."""


def eight_rows(_family: Any, *_operands: Any) -> None:
    """See `int8_rows.eight_rows`."""


def half_block(_family: Any, *_operands: Any) -> None:
    """See `int8_tile.half_block`."""


@overload(one_row)
def _one_row(_family, *_operands):
    if _family == AVX2.type:
        return lambda _family, *_operands: pairs.one_row(*_operands)
    if _family == VNNI.type:
        return lambda _family, *_operands: rows.one_row(*_operands)
    return None


@overload(eight_rows)
def _eight_rows(_family, *_operands):
    if _family == AVX2.type:
        return lambda _family, *_operands: pairs.eight_rows(*_operands)
    if _family == VNNI.type:
        return lambda _family, *_operands: rows.eight_rows(*_operands)
    return None


@overload(half_block)
def _half_block(_family, *_operands):
    if _family == AVX2.type:
        return lambda _family, *_operands: pairs.half_block(*_operands)
    if _family == VNNI.type:
        return lambda _family, *_operands: tile.half_block(*_operands)
    return None
