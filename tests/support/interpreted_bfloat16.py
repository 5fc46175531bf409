"""Triton's interpreter with bfloat16 as GPUs compute it: conversions to and from float32, and products of matrices.

numpy has no such type, so the interpreter holds its bits as integers. It multiplies these, which makes products wrong
by orders of magnitude, and it cuts bits off where a GPU rounds to the nearest, ties to even. Other arithmetic on
bfloat16 stays wrong; kernels do that in float32.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_cast = InterpreterBuilder.cast_impl
_dot = InterpreterBuilder.create_dot


def use() -> None:
    """In this process, from now on."""
    InterpreterBuilder.cast_impl = _cast_or_round
    InterpreterBuilder.create_dot = _dot_of_numbers


def _cast_or_round(self: Any, source: Any, kind: Any) -> Any:
    between = source.dtype.scalar, kind.scalar
    if between == (tl.bfloat16, tl.float32):
        return TensorHandle(_widened(source.data), tl.float32)
    if between == (tl.float32, tl.bfloat16):
        return TensorHandle(_rounded(source.data), tl.bfloat16)
    return _cast(self, source, kind)


def _dot_of_numbers(self: Any, a: Any, b: Any, *rest: Any) -> Any:
    """As tensor cores do: products are exact, and float32 holds their sums."""
    return _dot(self, _as_float32(a), _as_float32(b), *rest)


def _as_float32(handle: Any) -> Any:
    return TensorHandle(_widened(handle.data), tl.float32) if handle.dtype.scalar == tl.bfloat16 else handle


def _widened(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _rounded(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    bits = numbers.view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(numbers), 0x7FC0, nearest).astype(np.uint16)  # rounding could make a NaN infinite
