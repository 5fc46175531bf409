"""Small functions for numba kernels that LLVM vectorizes: bfloat16, e4m3 and exponentials.

Arrays hold float32, bfloat16 as uint16, or e4m3 (float8_e4m3fn) as uint8. A kernel that reads with `read` and writes
with `stored` is compiled for each from the same source; e4m3 is only written.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

# Optimizations of sums and quotients that kernels allow. Not fastmath=True: it assumes that there are no NaN and no
# infinities, and may make finite numbers of them, which the sampler cannot distinguish from a model's.
RELAXED = {"reassoc", "contract", "nsz", "arcp"}
_BFLOAT16, _FLOAT8 = types.uint16, types.uint8  # the elements of arrays of bfloat16 and of e4m3

# Bits of floats: the largest e4m3, its least normal number 2^-6, and infinity.
_LARGEST, _LEAST_NORMAL, _INFINITE = np.uint32(0x43E00000), np.uint32(0x3C800000), np.uint32(0x7F800000)
# Adding it rounds floats below _LEAST_NORMAL to multiples of 2^-9, the distance of e4m3 numbers there.
_SUBNORMAL_ROUNDER = np.float32(24576.0)


@intrinsic
def float_of_bits(_context: Any, bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.FloatType())

    return types.float32(types.uint32), emit


@intrinsic
def bits_of_float(_context: Any, value: Any) -> Any:
    """The 32 bits of a float32."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.IntType(32))

    return types.uint32(types.float32), emit


@intrinsic
def fused(_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c of float32, rounded once."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()] * 3)
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.f32"), values)

    return types.float32(types.float32, types.float32, types.float32), emit


@njit(cache=True, inline="always")
def widened(half):
    """float32 of a bfloat16 given as uint16."""
    return float_of_bits(np.uint32(np.uint32(half) << np.uint32(16)))


@njit(cache=True, inline="always")
def narrowed(value):
    """The nearest bfloat16 of a float32, ties to even, as uint16."""
    bits = bits_of_float(value)
    odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
    near = np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))
    return np.uint16(0x7FC0) if np.isnan(value) else near  # rounding carries some NaN into the sign: they would be 0


@njit(cache=True, inline="always")
def code_of(value):
    """The nearest e4m3 of a float32, ties to even, as uint8. Finite numbers beyond 448 become 448, and
    infinity becomes NaN. Without branches, so that loops are vectorized.
    """
    bits = bits_of_float(value)
    sign, size = np.uint32(bits >> np.uint32(24)) & np.uint32(0x80), np.uint32(bits & np.uint32(0x7FFFFFFF))
    clamped = size if size < _LARGEST else _LARGEST
    odd = np.uint32(clamped >> np.uint32(20)) & np.uint32(1)
    normal = np.uint32(np.uint32(clamped + np.uint32(0x7FFFF) + odd) >> np.uint32(20)) - np.uint32(120 << 3)
    small = bits_of_float(float_of_bits(clamped) + _SUBNORMAL_ROUNDER) - bits_of_float(_SUBNORMAL_ROUNDER)
    code = np.uint32(small if size < _LEAST_NORMAL else normal)
    code = code if size < _INFINITE else np.uint32(0x7F)
    return np.uint8(code | sign)


def read(_number: Any) -> Any:
    """Returns a number of an array as float32."""


def stored(_value: Any, _array: Any) -> Any:
    """Returns a float32 in the format of `_array`."""


@overload(read)
def _read(_number):
    if _number == _BFLOAT16:
        return lambda _number: widened(_number)
    return lambda _number: _number


@overload(stored)
def _stored(_value, _array):
    if _array.dtype == _BFLOAT16:
        return lambda _value, _array: narrowed(_value)
    if _array.dtype == _FLOAT8:
        return lambda _value, _array: code_of(_value)
    return lambda _value, _array: _value


@njit(cache=True, inline="always")
def exponential(x):
    """e to the x, relative error below 2e-7, for x in -87 … 87 (clamped; NaN stays): a polynomial that vectorizes."""
    given = x
    x = np.float32(-87.0) if x < np.float32(-87.0) else x
    x = np.float32(87.0) if x > np.float32(87.0) else x
    # Rounded by conversion to an integer: a function call would keep the loop scalar.
    # Sums of two int32 are int64 to numba: each is truncated, or half the lanes of a register are lost.
    power = np.int32(np.int32(fused(x, np.float32(1.44269504), np.float32(256.5))) - np.int32(256))
    whole = np.float32(power)
    rest = fused(whole, np.float32(2.12194440e-4), fused(whole, np.float32(-0.693359375), x))
    sum_ = fused(np.float32(1.9875691500e-4), rest, np.float32(1.3981999507e-3))
    sum_ = fused(sum_, rest, np.float32(8.3334519073e-3))
    sum_ = fused(sum_, rest, np.float32(4.1665795894e-2))
    sum_ = fused(sum_, rest, np.float32(1.6666665459e-1))
    sum_ = fused(sum_, rest, np.float32(5.0000001201e-1))
    value = fused(sum_ * rest, rest, rest) + np.float32(1.0)
    value *= float_of_bits(np.uint32(np.uint32(power + np.int32(127)) << np.uint32(23)))
    return given if np.isnan(given) else value  # a NaN may have any `power`


# 1/12! … 1/0!: for arguments of at most half of log 2, the omitted terms are below float64's last bit.
_TAYLOR = (
    2.08767569878681e-09, 2.505210838544172e-08, 2.755731922398589e-07, 2.7557319223985893e-06, 2.48015873015873e-05,
    1.984126984126984e-04, 1.388888888888889e-03, 8.333333333333333e-03, 4.1666666666666664e-02, 1.6666666666666666e-01,
    0.5, 1.0, 1.0,
)  # fmt: skip


@njit(cache=True, inline="always")
def exponential64(x):
    """e to the x in float64, for x in -87 … 0 (NaN stays): a polynomial that vectorizes."""
    power = np.int32(x * 1.4426950408889634 - 0.5)
    rest = x - power * 0.6931471803691238 - power * 1.9082149292705877e-10
    a, b, c, d, e, f, g, h, i, j, k, m, n = _TAYLOR
    sum_ = ((((((a * rest + b) * rest + c) * rest + d) * rest + e) * rest + f) * rest + g) * rest + h
    sum_ = ((((sum_ * rest + i) * rest + j) * rest + k) * rest + m) * rest + n
    value = sum_ * float_of_bits(np.uint32(np.uint32(power + np.int32(127)) << np.uint32(23)))
    return x if np.isnan(x) else value
