"""Parts of kernels that multiply with codes: codes and scales of a unit as numbers, and the products of a tile. The
layout is in `linear.codes`, the maths in `reference/linear.md`.

A weight may be one of several with the same sizes, whose scales follow one another: `base` is its first group.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from legato_engine.kernels.gpu.linear.codes import CodeKind, CodeMatrix

_INT4, _INT8 = tl.constexpr(int(CodeKind.INT4)), tl.constexpr(int(CodeKind.INT8))
_FLOAT4 = tl.constexpr(int(CodeKind.FLOAT4))
_LEAST_POWER = tl.constexpr(0x400000)  # bits of 2^-127


class CodeScaling(NamedTuple):
    """The scales, zero points and minima of a weight, each [groups, outputs]; see `CodeMatrix`."""

    scale: torch.Tensor
    scale_factors: torch.Tensor | None
    zeros: torch.Tensor | None
    minimum: torch.Tensor | None
    minimum_factors: torch.Tensor | None


class CodeFormat(NamedTuple):
    """Constants of a weight that kernels are compiled for."""

    KIND: int
    PAIRED: bool  # a byte has codes of two units
    UNIT: int
    GROUP: int  # inputs that share a scale, or 0: all inputs share one
    SHARED: int  # groups that share a factor of scales
    MINIMUM_SHARED: int
    ZERO: int


def scaling(weight: CodeMatrix) -> CodeScaling:
    """The weight's scales as an argument of kernels."""
    minimum = weight.minimum
    minima = (None, None) if minimum is None else (minimum.values, minimum.factors)
    return CodeScaling(weight.scale.values, weight.scale.factors, weight.zeros, *minima)


def format_of(weight: CodeMatrix) -> CodeFormat:
    """The weight's constants as an argument of kernels."""
    whole = weight.group >= weight.inputs and weight.minimum is None and weight.zeros is None
    return CodeFormat(
        KIND=int(weight.kind),
        PAIRED=weight.kind.paired,
        UNIT=weight.unit,
        GROUP=0 if whole else weight.group,
        SHARED=weight.scale.shared,
        MINIMUM_SHARED=1 if weight.minimum is None else weight.minimum.shared,
        ZERO=weight.zero,
    )


@triton.jit
def numbers_of(codes, KIND: tl.constexpr, dtype: tl.constexpr, ZERO: tl.constexpr):
    """codes - ZERO as numbers of `dtype`, exact."""
    if KIND == _INT4:  # the bits of 128 or 1024 plus the code, where neighbouring numbers differ by 1
        if dtype == tl.bfloat16:
            numbers = (codes.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True) - (128.0 + ZERO)
        elif dtype == tl.float16:
            numbers = (codes.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True) - (1024.0 + ZERO)
        else:
            numbers = codes.to(dtype) - ZERO
    elif KIND == _INT8:
        numbers = codes.to(dtype)
    elif KIND == _FLOAT4:  # e2m1 has the bits of a float16 that is smaller by 2^14, or of a bfloat16 by 2^126
        bits = codes.to(tl.uint16)
        sign, rest = (bits & 8) << 12, bits & 7
        if dtype == tl.bfloat16:
            numbers = (sign | rest << 6).to(tl.bfloat16, bitcast=True) * (2.0**126)
        else:
            numbers = ((sign | rest << 9).to(tl.float16, bitcast=True) * 16384.0).to(dtype)
    else:  # e4m3 has the bits of a float16 that is smaller by 2^8, or of a bfloat16 that is smaller by 2^120
        bits = codes.to(tl.uint16)
        sign, rest = (bits & 0x80) << 8, bits & 0x7F
        if dtype == tl.bfloat16:
            numbers = (sign | rest << 4).to(tl.bfloat16, bitcast=True) * (2.0**120)
        else:
            numbers = ((sign | rest << 7).to(tl.float16, bitcast=True) * 256.0).to(dtype)
    return numbers


@triton.jit
def group_numbers(values, factors, group, n, inside, outputs, SHARED: tl.constexpr):
    """The scales or minima of one group, float32 [TILE_N]. Bytes are exponents of powers of two (e8m0)."""
    stored = tl.load(values + group * outputs + n, mask=inside, other=0)
    if values.dtype.element_ty == tl.uint8:
        numbers = tl.maximum(stored.to(tl.uint32) << 23, _LEAST_POWER).to(tl.float32, bitcast=True)
    else:
        numbers = stored.to(tl.float32)
    if factors is not None:
        numbers *= tl.load(factors + group // SHARED * outputs + n, mask=inside, other=0).to(tl.float32)
    return numbers


@triton.jit
def group_of(scaling, base, first, inputs, n, inside, outputs, FORMAT: tl.constexpr):
    """Scales and minima [TILE_N] of the group with the input `first`, or of the last group: a weight is the scale times
    code - ZERO, plus the minimum."""
    group = base + (tl.minimum(first, inputs - 1) // FORMAT.GROUP if FORMAT.GROUP else 0)
    scale = group_numbers(scaling.scale, scaling.scale_factors, group, n, inside, outputs, FORMAT.SHARED)
    if scaling.minimum is not None:
        minimum = group_numbers(
            scaling.minimum, scaling.minimum_factors, group, n, inside, outputs, FORMAT.MINIMUM_SHARED
        )
    elif scaling.zeros is not None:
        zero = tl.load(scaling.zeros + group * outputs + n, mask=inside, other=0).to(tl.float32)
        minimum = scale * (FORMAT.ZERO - zero)
    else:
        minimum = tl.zeros_like(scale)
    return scale, minimum


@triton.jit
def _groups(scaling, base, first, inputs, n, inside, outputs, FORMAT: tl.constexpr, SEPARATE: tl.constexpr):
    """Scales and minima of the unit from the input `first` on, and of the last unit in the same bytes."""
    scale, minimum = group_of(scaling, base, first, inputs, n, inside, outputs, FORMAT)
    last_scale, last_minimum = scale, minimum
    if SEPARATE:
        last_scale, last_minimum = group_of(scaling, base, first + FORMAT.UNIT, inputs, n, inside, outputs, FORMAT)
    return scale, minimum, last_scale, last_minimum


@triton.jit
def load_inputs(from_x, order, inputs, first, within, UNIT: tl.constexpr, EVEN: tl.constexpr):
    """x [TILE_M, UNIT] for the columns of codes from `first` on; 0 beyond the inputs."""
    k = first + tl.arange(0, UNIT)
    present = within if EVEN else within & (k < inputs)[None, :]
    if order is not None:
        k = tl.load(order + k) if EVEN else tl.load(order + k, mask=k < inputs, other=0)
    return tl.load(from_x + k[None, :], mask=present, other=0.0)


@triton.jit
def unit_codes(code_bytes, PAIRED: tl.constexpr, PART: tl.constexpr):
    """The codes of one of the units in the bytes."""
    if not PAIRED:
        codes = code_bytes
    elif PART == 0:
        codes = code_bytes & 15
    else:
        codes = code_bytes >> 4
    return codes


@triton.jit
def _add_product(sums, x, code_bytes, FORMAT: tl.constexpr, PART: tl.constexpr):
    """sums [TILE_M, TILE_N], or 0 if None, plus x [TILE_M, UNIT] times the codes of a unit, without their scale."""
    codes = unit_codes(code_bytes, FORMAT.PAIRED, PART)
    numbers = tl.trans(numbers_of(codes, FORMAT.KIND, x.dtype, FORMAT.ZERO))
    if sums is None:
        products = tl.dot(x, numbers, input_precision="ieee")
    else:
        products = tl.dot(x, numbers, sums, input_precision="ieee")
    return products


@triton.jit
def _add_units(
    sums, code_bytes, groups, from_x, order, inputs, first, within, FORMAT: tl.constexpr, EVEN: tl.constexpr,
    MINIMA: tl.constexpr, SEPARATE: tl.constexpr,
):  # fmt: skip
    """Adds the products of x with the units in the bytes, scaled with `_groups` unless all inputs share a scale."""
    scale, minimum, last_scale, last_minimum = groups
    x = load_inputs(from_x, order, inputs, first, within, FORMAT.UNIT, EVEN)
    products = _add_product(sums if FORMAT.GROUP == 0 else None, x, code_bytes, FORMAT, 0)
    wide = x.to(tl.float32)
    if SEPARATE:
        sums += products * scale[None, :]
        if MINIMA:
            sums += tl.sum(wide, 1)[:, None] * minimum[None, :]
    if FORMAT.PAIRED:
        x = load_inputs(from_x, order, inputs, first + FORMAT.UNIT, within, FORMAT.UNIT, EVEN)
        products = _add_product(None if SEPARATE else products, x, code_bytes, FORMAT, 1)
        wide = x.to(tl.float32) if SEPARATE else wide + x.to(tl.float32)
    if FORMAT.GROUP == 0:
        sums = products
    else:
        if MINIMA:
            sums += tl.sum(wide, 1)[:, None] * last_minimum[None, :]
        sums += products * last_scale[None, :]
    return sums


@triton.jit
def multiply_units(
    from_x, within, order, inputs, from_codes, scaling, base, n, inside, outputs, begin, end, unit_stride,
    FORMAT: tl.constexpr, EVEN: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
):  # fmt: skip
    """x · weightᵀ, float32 [TILE_M, TILE_N], over the units, or pairs of units, from `begin` to `end`.

    from_x points to rows [TILE_M, 1], which exist `within`; from_codes to the first unit of the outputs n [TILE_N], of
    which those `inside` exist. EVEN: no tile of codes has outputs or inputs beyond the weight."""
    STEP: tl.constexpr = 2 * FORMAT.UNIT if FORMAT.PAIRED else FORMAT.UNIT
    SEPARATE: tl.constexpr = FORMAT.GROUP % STEP != 0  # the units of a pair are in two groups
    MINIMA: tl.constexpr = scaling.minimum is not None or scaling.zeros is not None
    sums = tl.zeros([TILE_M, TILE_N], tl.float32)
    # Scales of the next unit are carried: loaded and used in one iteration, the loop would wait for them.
    groups = _groups(scaling, base, begin * STEP, inputs, n, inside, outputs, FORMAT, SEPARATE)
    for unit in tl.range(begin, end):
        at = from_codes + unit * unit_stride
        code_bytes = tl.load(at) if EVEN else tl.load(at, mask=inside[:, None], other=0)
        first = unit * STEP
        sums = _add_units(
            sums, code_bytes, groups, from_x, order, inputs, first, within, FORMAT, EVEN, MINIMA, SEPARATE
        )
        if FORMAT.GROUP != 0:
            groups = _groups(scaling, base, first + STEP, inputs, n, inside, outputs, FORMAT, SEPARATE)
    if FORMAT.GROUP == 0:
        sums *= groups[0][None, :]
    return sums
