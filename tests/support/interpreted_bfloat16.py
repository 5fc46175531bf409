"""Triton's interpreter with bfloat16 and FP8 as GPUs compute them: conversions to and from float32, products of
matrices, and differences and products of bfloat16.

numpy has no such types, so the interpreter holds their bits as integers. It computes with these, which makes products
wrong by orders of magnitude. It cuts bits off bfloat16 where a GPU rounds to the nearest, ties to even, and loses the
carry where FP8 rounds up to the next power of two. Other arithmetic on bfloat16 stays wrong; kernels do that in
float32.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_cast = InterpreterBuilder.cast_impl
_dot = InterpreterBuilder.create_dot
_convert = InterpreterBuilder.create_fp_to_fp
_subtract, _multiply = InterpreterBuilder.create_fsub, InterpreterBuilder.create_fmul


def use() -> None:
    """In this process, from now on."""
    InterpreterBuilder.cast_impl = _cast_or_round
    InterpreterBuilder.create_dot = _dot_of_numbers
    InterpreterBuilder.create_fp_to_fp = _convert_or_round
    InterpreterBuilder.get_bf16 = _constant
    InterpreterBuilder.create_fsub = _of_numbers(_subtract)
    InterpreterBuilder.create_fmul = _of_numbers(_multiply)


def _cast_or_round(self: Any, source: Any, kind: Any) -> Any:
    between = source.dtype.scalar, kind.scalar
    if between == (tl.bfloat16, tl.float32):
        return TensorHandle(_widened(source.data), tl.float32)
    if between == (tl.float32, tl.bfloat16):
        return TensorHandle(_rounded(source.data), tl.bfloat16)
    if kind.scalar == tl.bfloat16 and source.dtype.scalar.is_int():
        return TensorHandle(_rounded(source.data.astype(np.float32)), tl.bfloat16)
    return _cast(self, source, kind)


def _dot_of_numbers(self: Any, a: Any, b: Any, *rest: Any) -> Any:
    """As tensor cores do: products are exact, and float32 holds their sums."""
    return _dot(self, _as_float32(a), _as_float32(b), *rest)


def _convert_or_round(self: Any, source: Any, kind: Any, rounding: Any) -> Any:
    if (source.dtype.scalar, kind.scalar) != (tl.float32, tl.float8e4nv):
        return _convert(self, source, kind, rounding)
    rounded = torch.from_numpy(np.ascontiguousarray(source.data)).to(torch.float8_e4m3fn)
    return TensorHandle(rounded.view(torch.uint8).numpy(), tl.float8e4nv)


def _constant(_self: Any, value: float) -> Any:
    return TensorHandle(_rounded(np.array([value], np.float32)), tl.bfloat16)


def _of_numbers(compute: Any) -> Any:
    """An operator of bfloat16 by that of float32, rounded once."""

    def computed(self: Any, left: Any, right: Any) -> Any:
        if left.dtype.scalar != tl.bfloat16:
            return compute(self, left, right)
        return _cast_or_round(self, compute(self, _as_float32(left), _as_float32(right)), tl.bfloat16)

    return computed


def _as_float32(handle: Any) -> Any:
    return TensorHandle(_widened(handle.data), tl.float32) if handle.dtype.scalar == tl.bfloat16 else handle


def _widened(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _rounded(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    bits = numbers.view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(numbers), 0x7FC0, nearest).astype(np.uint16)  # rounding could make a NaN infinite
