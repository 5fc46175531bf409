"""Products of a few rows with quantized weights in Triton, and quantized weights in floating point for more rows. The
maths is in `reference/linear.md`.

A program multiplies the codes, which are exact in 16 bits, and scales the sums of each group in float32. If the outputs
are too few to fill the chip, inputs are split among programs, whose sums a second launch adds in a fixed order.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.linear.codes import CodeKind, CodeMatrix

_INT4, _INT8 = tl.constexpr(int(CodeKind.INT4)), tl.constexpr(int(CodeKind.INT8))
_LEAST_UNITS = 8  # of a split: loads of fewer do not overlap
_ADDED = tl.constexpr(1024)  # outputs that a program adds


class _Scaling(NamedTuple):
    """The scales, zero points and minima of a weight, each [groups, outputs]; see `CodeMatrix`."""

    scale: torch.Tensor
    scale_factors: torch.Tensor | None
    zeros: torch.Tensor | None
    minimum: torch.Tensor | None
    minimum_factors: torch.Tensor | None


class _Format(NamedTuple):
    """Constants of a weight that kernels are compiled for."""

    KIND: int
    UNIT: int
    GROUP: int  # inputs that share a scale, or 0: all inputs share one
    SHARED: int  # groups that share a factor of scales
    MINIMUM_SHARED: int
    ZERO: int


@triton.jit
def _numbers(codes, KIND: tl.constexpr, dtype: tl.constexpr, ZERO: tl.constexpr):
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
    else:  # e4m3 has the bits of a float16 that is smaller by 2^8, or of a bfloat16 that is smaller by 2^120
        bits = codes.to(tl.uint16)
        sign, rest = (bits & 0x80) << 8, bits & 0x7F
        if dtype == tl.bfloat16:
            numbers = (sign | rest << 4).to(tl.bfloat16, bitcast=True) * (2.0**120)
        else:
            numbers = ((sign | rest << 7).to(tl.float16, bitcast=True) * 256.0).to(dtype)
    return numbers


@triton.jit
def _group_numbers(values, factors, group, n, inside, outputs, SHARED: tl.constexpr):
    """The scales or minima of one group, float32 [TILE_N]."""
    numbers = tl.load(values + group * outputs + n, mask=inside, other=0).to(tl.float32)
    if factors is not None:
        numbers *= tl.load(factors + group // SHARED * outputs + n, mask=inside, other=0).to(tl.float32)
    return numbers


@triton.jit
def _group(scaling, first, inputs, n, inside, outputs, FORMAT: tl.constexpr):
    """Scales and minima [TILE_N] of the group with the input `first`, or of the last group: a weight is the scale times
    code - ZERO, plus the minimum."""
    group = tl.minimum(first, inputs - 1) // FORMAT.GROUP if FORMAT.GROUP else 0
    scale = _group_numbers(scaling.scale, scaling.scale_factors, group, n, inside, outputs, FORMAT.SHARED)
    if scaling.minimum is not None:
        minimum = _group_numbers(
            scaling.minimum, scaling.minimum_factors, group, n, inside, outputs, FORMAT.MINIMUM_SHARED
        )
    elif scaling.zeros is not None:
        zero = tl.load(scaling.zeros + group * outputs + n, mask=inside, other=0).to(tl.float32)
        minimum = scale * (FORMAT.ZERO - zero)
    else:
        minimum = tl.zeros_like(scale)
    return scale, minimum


@triton.jit
def _groups(scaling, first, inputs, n, inside, outputs, FORMAT: tl.constexpr, SEPARATE: tl.constexpr):
    """Scales and minima of the unit from the input `first` on, and of the last unit in the same bytes."""
    scale, minimum = _group(scaling, first, inputs, n, inside, outputs, FORMAT)
    last_scale, last_minimum = scale, minimum
    if SEPARATE:
        last_scale, last_minimum = _group(scaling, first + FORMAT.UNIT, inputs, n, inside, outputs, FORMAT)
    return scale, minimum, last_scale, last_minimum


@triton.jit
def _load_inputs(from_x, order, inputs, first, within, UNIT: tl.constexpr, EVEN: tl.constexpr):
    """x [TILE_M, UNIT] for the columns of codes from `first` on; 0 beyond the inputs."""
    k = first + tl.arange(0, UNIT)
    present = within if EVEN else within & (k < inputs)[None, :]
    if order is not None:
        k = tl.load(order + k) if EVEN else tl.load(order + k, mask=k < inputs, other=0)
    return tl.load(from_x + k[None, :], mask=present, other=0.0)


@triton.jit
def _unit_codes(code_bytes, KIND: tl.constexpr, PART: tl.constexpr):
    """The codes of one of the units in the bytes."""
    if KIND != _INT4:
        codes = code_bytes
    elif PART == 0:
        codes = code_bytes & 15
    else:
        codes = code_bytes >> 4
    return codes


@triton.jit
def _add_product(sums, x, code_bytes, FORMAT: tl.constexpr, PART: tl.constexpr):
    """sums [TILE_M, TILE_N], or 0 if None, plus x [TILE_M, UNIT] times the codes of a unit, without their scale."""
    codes = _unit_codes(code_bytes, FORMAT.KIND, PART)
    numbers = tl.trans(_numbers(codes, FORMAT.KIND, x.dtype, FORMAT.ZERO))
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
    x = _load_inputs(from_x, order, inputs, first, within, FORMAT.UNIT, EVEN)
    products = _add_product(sums if FORMAT.GROUP == 0 else None, x, code_bytes, FORMAT, 0)
    wide = x.to(tl.float32)
    if SEPARATE:
        sums += products * scale[None, :]
        if MINIMA:
            sums += tl.sum(wide, 1)[:, None] * minimum[None, :]
    if FORMAT.KIND == _INT4:
        x = _load_inputs(from_x, order, inputs, first + FORMAT.UNIT, within, FORMAT.UNIT, EVEN)
        products = _add_product(None if SEPARATE else products, x, code_bytes, FORMAT, 1)
        wide = x.to(tl.float32) if SEPARATE else wide + x.to(tl.float32)
    if FORMAT.GROUP == 0:
        sums = products
    else:
        if MINIMA:
            sums += tl.sum(wide, 1)[:, None] * last_minimum[None, :]
        sums += products * last_scale[None, :]
    return sums


@triton.jit(do_not_specialize=["rows", "units_of_split", "split_stride"])  # compiled once for all sizes of a step
def _multiply_codes(
    x,  # [rows, inputs]
    codes,
    scaling,  # _Scaling
    order,  # [inputs]
    bias,  # [outputs]
    out,  # [rows, outputs], or float32 [splits, rows, outputs] without bias
    rows,
    inputs,
    outputs,
    units_of_split,
    x_stride,
    out_stride,
    split_stride,
    unit_stride,
    output_stride,
    FORMAT: tl.constexpr,  # _Format
    EVEN: tl.constexpr,  # no tile of codes has outputs or inputs beyond the weight
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    STEP: tl.constexpr = 2 * FORMAT.UNIT if FORMAT.KIND == _INT4 else FORMAT.UNIT
    SEPARATE: tl.constexpr = FORMAT.GROUP % STEP != 0  # the units of a pair are in two groups
    MINIMA: tl.constexpr = scaling.minimum is not None or scaling.zeros is not None
    row = tl.program_id(1) * TILE_M + tl.arange(0, TILE_M)
    n = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    inside = n < outputs
    within = row[:, None] < rows
    begin = tl.program_id(2) * units_of_split
    end = tl.minimum(begin + units_of_split, tl.cdiv(inputs, STEP))
    sums = tl.zeros([TILE_M, TILE_N], tl.float32)
    from_x = x + row.to(tl.int64)[:, None] * x_stride
    from_codes = codes + n.to(tl.int64)[:, None] * output_stride + tl.arange(0, FORMAT.UNIT)[None, :]
    # Scales of the next unit are carried: loaded and used in one iteration, the loop would wait for them.
    groups = _groups(scaling, begin * STEP, inputs, n, inside, outputs, FORMAT, SEPARATE)
    for unit in tl.range(begin, end):
        at = from_codes + unit * unit_stride
        code_bytes = tl.load(at) if EVEN else tl.load(at, mask=inside[:, None], other=0)
        first = unit * STEP
        sums = _add_units(
            sums, code_bytes, groups, from_x, order, inputs, first, within, FORMAT, EVEN, MINIMA, SEPARATE
        )
        if FORMAT.GROUP != 0:
            groups = _groups(scaling, first + STEP, inputs, n, inside, outputs, FORMAT, SEPARATE)
    if FORMAT.GROUP == 0:
        sums *= groups[0][None, :]
    if bias is not None:
        sums += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)[None, :]
    to = out + tl.program_id(2).to(tl.int64) * split_stride + row.to(tl.int64)[:, None] * out_stride + n[None, :]
    tl.store(to, sums.to(out.dtype.element_ty), mask=within & inside[None, :])


@triton.jit(do_not_specialize=["split_stride", "splits"])
def _add_splits(
    parts,  # float32 [splits, rows, outputs]
    bias,  # [outputs]
    out,  # [rows, outputs]
    outputs,
    out_stride,
    split_stride,
    splits,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = n < outputs
    total = tl.zeros([WIDTH], tl.float32)
    for split in tl.range(0, splits):
        total += tl.load(parts + split * split_stride + row * outputs + n, mask=inside, other=0.0)
    if bias is not None:
        total += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + n, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["first", "last"])
def _dequantize_codes(
    codes,
    scaling,  # _Scaling
    order,  # [inputs]
    out,  # [last - first, inputs]
    inputs,
    outputs,
    first,
    last,
    unit_stride,
    output_stride,
    FORMAT: tl.constexpr,  # _Format
    TILE_N: tl.constexpr,
):
    PARTS: tl.constexpr = 2 if FORMAT.KIND == _INT4 else 1
    unit = tl.program_id(0)
    n = first + tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    inside = n < last
    place = tl.arange(0, FORMAT.UNIT)
    at = codes + n.to(tl.int64)[:, None] * output_stride + unit * unit_stride + place[None, :]
    code_bytes = tl.load(at, mask=inside[:, None], other=0)
    for part in tl.static_range(PARTS):
        begin = (unit * PARTS + part) * FORMAT.UNIT
        k = begin + place
        present = inside[:, None] & (k < inputs)[None, :]
        scale, minimum = _group(scaling, begin, inputs, n, inside, outputs, FORMAT)
        if order is not None:
            k = tl.load(order + k, mask=k < inputs, other=0)
        numbers = _numbers(_unit_codes(code_bytes, FORMAT.KIND, part), FORMAT.KIND, tl.float32, FORMAT.ZERO)
        if scaling.zeros is not None:
            group = tl.minimum(begin, inputs - 1) // FORMAT.GROUP
            zero = tl.load(scaling.zeros + group * outputs + n, mask=inside, other=0).to(tl.float32)
            numbers += FORMAT.ZERO - zero[:, None]
        numbers *= scale[:, None]
        if scaling.minimum is not None:
            numbers += minimum[:, None]
        to = out + (n - first).to(tl.int64)[:, None] * inputs + k[None, :]
        tl.store(to, numbers.to(out.dtype.element_ty), mask=present)


def splits(weight: CodeMatrix, processors: int, config: Configuration) -> int:
    """The parts that inputs are split into: a power of two, for any number of rows.

    Tiles: TILE_N outputs, and PROGRAMS, the programs for each processor that fill the chip."""
    programs = triton.cdiv(weight.outputs, config.tiles["TILE_N"])
    units = weight.inputs * weight.bits // (8 * weight.unit)
    most = min(processors * config.tiles["PROGRAMS"] // programs, units // _LEAST_UNITS)
    return 1 << most.bit_length() - 1 if most else 1


def multiply(
    x: torch.Tensor, weight: CodeMatrix, bias: torch.Tensor | None, out: torch.Tensor, parts: torch.Tensor,
    processors: int, config: Configuration,
) -> None:  # fmt: skip
    """out = x · weightᵀ + bias. x [rows, inputs], out [rows, outputs], neighbours in a row contiguous.

    `parts` is memory for splits, float32 of at least `parts_needed` numbers. Tiles: TILE_M rows, and as for `splits`.
    """
    rows, (unit_stride, output_stride) = len(x), weight.strides
    tile_m, tile_n = config.tiles["TILE_M"], config.tiles["TILE_N"]
    count = splits(weight, processors, config)
    units = triton.cdiv(weight.inputs * weight.bits, 8 * weight.unit)
    even = not weight.outputs % tile_n and not weight.inputs * weight.bits % (8 * weight.unit)
    into, bias_now = (out, bias) if count == 1 else (parts, None)
    _multiply_codes[(triton.cdiv(weight.outputs, tile_n), triton.cdiv(rows, tile_m), count)](
        x, weight.codes, _scaling(weight), weight.order, bias_now, into, rows, weight.inputs, weight.outputs,
        triton.cdiv(units, count), x.stride(0), weight.outputs if count > 1 else out.stride(0), rows * weight.outputs,
        unit_stride, output_stride, FORMAT=_format(weight), EVEN=even, TILE_M=tile_m, TILE_N=tile_n,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    if count > 1:
        _add_splits[(rows, triton.cdiv(weight.outputs, _ADDED.value))](
            parts, bias, out, weight.outputs, out.stride(0), rows * weight.outputs, count, WIDTH=_ADDED.value,
            num_warps=4,
        )  # fmt: skip


def parts_needed(rows: int, processors: int, config: Configuration) -> int:
    """The most numbers that splits of a product of up to `rows` take."""
    return rows * processors * config.tiles["PROGRAMS"] * config.tiles["TILE_N"]


def dequantize(weight: CodeMatrix, first: int, out: torch.Tensor, config: Configuration) -> None:
    """Writes the outputs from `first` on into out [count, inputs], contiguous, rounded once. Tile: TILE_N outputs."""
    unit_stride, output_stride = weight.strides
    units = triton.cdiv(weight.inputs * weight.bits, 8 * weight.unit)
    _dequantize_codes[(units, triton.cdiv(len(out), config.tiles["TILE_N"]))](
        weight.codes, _scaling(weight), weight.order, out, weight.inputs, weight.outputs, first, first + len(out),
        unit_stride, output_stride, FORMAT=_format(weight), **config.options,
    )  # fmt: skip


def _scaling(weight: CodeMatrix) -> _Scaling:
    scale, minimum = weight.scale, weight.minimum
    minima = (None, None) if minimum is None else (minimum.values, minimum.factors)
    return _Scaling(scale.values, scale.factors, weight.zeros, *minima)


def _format(weight: CodeMatrix) -> _Format:
    whole = weight.group >= weight.inputs and weight.minimum is None and weight.zeros is None
    return _Format(
        KIND=int(weight.kind),
        UNIT=weight.unit,
        GROUP=0 if whole else weight.group,
        SHARED=weight.scale.shared,
        MINIMUM_SHARED=1 if weight.minimum is None else weight.minimum.shared,
        ZERO=weight.zero,
    )
