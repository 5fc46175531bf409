"""e4m3 numbers in Triton's kernels. The maths is in `reference/float8.md`."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

_LARGEST = tl.constexpr(0x43E00000)  # bits of 448
_LEAST_NORMAL = tl.constexpr(0x3C800000)  # bits of 2^-6
_INFINITE = tl.constexpr(0x7F800000)
# Adding it rounds floats below _LEAST_NORMAL to multiples of 2^-9, the distance of e4m3 numbers there.
_SUBNORMAL_ROUNDER = tl.constexpr(24576.0)
_ROUNDER_BITS = tl.constexpr(0x46C00000)


@triton.jit
def encoded(x):
    """The nearest e4m3 of float32, as uint8. Finite numbers saturate; infinity becomes NaN."""
    bits = x.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    clamped = tl.minimum(size, _LARGEST)
    normal = ((clamped + 0x7FFFF + ((clamped >> 20) & 1)) >> 20) - 960  # 120 << 3, the difference of the exponents
    small = (clamped.to(tl.float32, bitcast=True) + _SUBNORMAL_ROUNDER).to(tl.uint32, bitcast=True) - _ROUNDER_BITS
    code = tl.where(size < _LEAST_NORMAL, small, normal)
    code = tl.where(size < _INFINITE, code, 0x7F)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def decoded(tile, dtype: tl.constexpr):
    """Part of an arena in `dtype`: floats, e4m3 that the chip converts, or e4m3 as uint8."""
    if tile.dtype == tl.uint8:
        wide = tile.to(tl.uint16)
        bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
        bits = bits | ((bits + 0x80) & 0x4000)  # NaN
        tile = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tile.to(dtype)


@triton.jit
def quantized(numbers, AXIS: tl.constexpr):
    """Returns e4m3 codes of float32 numbers, and a float32 scale for all numbers along the axis."""
    scale = scale_for(tl.max(tl.abs(numbers), AXIS))
    return coded(numbers, tl.expand_dims(scale, AXIS)), scale


@triton.jit
def scale_for(largest):
    """The scale that maps the largest absolute value to 448, above 0: a row of zeros has a scale, too."""
    return tl.maximum(largest, 1e-30) / 448.0


@triton.jit
def coded(numbers, scale):
    """Returns e4m3 codes of numbers / scale."""
    return tl.minimum(tl.maximum(numbers / scale, -448.0), 448.0).to(tl.float8e4nv)


class Float8Rows(NamedTuple):
    """Activations in e4m3: contiguous codes [rows, width] and float32 scales [groups, rows].

    A scale belongs to `group` neighbours in a row; the last group may be smaller.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    group: int
