"""Products of a few rows with quantized weights in Triton, and quantized weights in floating point for more rows. The
maths is in `reference/linear.md`.

A program multiplies the codes, which are exact in 16 bits, and scales the sums of each group in float32. If the outputs
are too few to fill the chip, inputs are split among programs, whose sums a second launch adds in a fixed order.
"""

import torch
import triton
import triton.language as tl

from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.linear.codes import CodeKind, CodeMatrix

_INT4, _INT8 = tl.constexpr(int(CodeKind.INT4)), tl.constexpr(int(CodeKind.INT8))
_LEAST_UNITS = 8  # of a split: loads of fewer do not overlap
_ADDED = tl.constexpr(1024)  # outputs that a program adds


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
def _scales(values, factors, group, n, inside, outputs, SHARED: tl.constexpr):
    """float32 [TILE_N] of one group."""
    scale = tl.load(values + group * outputs + n, mask=inside, other=0).to(tl.float32)
    if factors is not None:
        scale *= tl.load(factors + group // SHARED * outputs + n, mask=inside, other=0).to(tl.float32)
    return scale


@triton.jit
def _group(
    scale, scale_factors, zeros, minimum, minimum_factors, first, inputs, n, inside, outputs, GROUP: tl.constexpr,
    SHARED: tl.constexpr, MINIMUM_SHARED: tl.constexpr, ZERO: tl.constexpr,
):  # fmt: skip
    """Scales and minima [TILE_N] of the group with the input `first`, or of the last group: a weight is the scale times
    code - ZERO, plus the minimum."""
    group = tl.minimum(first, inputs - 1) // GROUP if GROUP else 0
    by = _scales(scale, scale_factors, group, n, inside, outputs, SHARED)
    if minimum is not None:
        least = _scales(minimum, minimum_factors, group, n, inside, outputs, MINIMUM_SHARED)
    elif zeros is not None:
        least = by * (ZERO - tl.load(zeros + group * outputs + n, mask=inside, other=0).to(tl.float32))
    else:
        least = tl.zeros_like(by)
    return by, least


@triton.jit
def _given(from_x, order, inputs, first, within, UNIT: tl.constexpr, EVEN: tl.constexpr):
    """x [TILE_M, UNIT] for the columns of codes from `first` on; 0 beyond the inputs."""
    k = first + tl.arange(0, UNIT)
    present = within if EVEN else within & (k < inputs)[None, :]
    if order is not None:
        k = tl.load(order + k) if EVEN else tl.load(order + k, mask=k < inputs, other=0)
    return tl.load(from_x + k[None, :], mask=present, other=0.0)


@triton.jit
def _taken(held, KIND: tl.constexpr, PART: tl.constexpr):
    """The codes of one of the units in a byte."""
    if KIND != _INT4:
        taken = held
    elif PART == 0:
        taken = held & 15
    else:
        taken = held >> 4
    return taken


@triton.jit(do_not_specialize=["rows", "units_of_split", "split_stride"])  # compiled once for all sizes of a step
def _multiply_codes(
    x,  # [rows, inputs]
    codes,
    scale,  # [groups, outputs]
    scale_factors,
    zeros,
    minimum,
    minimum_factors,
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
    KIND: tl.constexpr,
    UNIT: tl.constexpr,
    GROUP: tl.constexpr,  # 0: all inputs share a scale
    SHARED: tl.constexpr,
    MINIMUM_SHARED: tl.constexpr,
    ZERO: tl.constexpr,
    EVEN: tl.constexpr,  # no tile of codes has outputs or inputs beyond the weight
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    PAIRED: tl.constexpr = KIND == _INT4
    STEP: tl.constexpr = 2 * UNIT if PAIRED else UNIT
    SAME: tl.constexpr = GROUP % STEP == 0  # both units of a pair are in one group
    MINIMA: tl.constexpr = minimum is not None or zeros is not None
    row = tl.program_id(1) * TILE_M + tl.arange(0, TILE_M)
    n = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    inside = n < outputs
    within = row[:, None] < rows
    begin = tl.program_id(2) * units_of_split
    end = tl.minimum(begin + units_of_split, tl.cdiv(inputs, STEP))
    sums = tl.zeros([TILE_M, TILE_N], tl.float32)
    from_x = x + row.to(tl.int64)[:, None] * x_stride
    from_codes = codes + n.to(tl.int64)[:, None] * output_stride + tl.arange(0, UNIT)[None, :]
    # Scales of the next unit are carried: loaded and used in one iteration, the loop would wait for them.
    by, least = _group(
        scale, scale_factors, zeros, minimum, minimum_factors, begin * STEP, inputs, n, inside, outputs, GROUP, SHARED,
        MINIMUM_SHARED, ZERO,
    )  # fmt: skip
    next_by, next_least = by, least
    if not SAME:
        next_by, next_least = _group(
            scale, scale_factors, zeros, minimum, minimum_factors, begin * STEP + UNIT, inputs, n, inside, outputs,
            GROUP, SHARED, MINIMUM_SHARED, ZERO,
        )  # fmt: skip
    for unit in tl.range(begin, end):
        at = from_codes + unit * unit_stride
        held = tl.load(at) if EVEN else tl.load(at, mask=inside[:, None], other=0)
        first = unit * STEP
        given = _given(from_x, order, inputs, first, within, UNIT, EVEN)
        numbers = tl.trans(_numbers(_taken(held, KIND, 0), KIND, x.dtype.element_ty, ZERO))
        if GROUP == 0:
            sums = tl.dot(given, numbers, sums, input_precision="ieee")
        else:
            products = tl.dot(given, numbers, input_precision="ieee")
        if MINIMA:
            wide = given.to(tl.float32)
        if PAIRED:
            if GROUP != 0 and not SAME:
                sums += products * by[None, :]
                if MINIMA:
                    sums += tl.sum(wide, 1)[:, None] * least[None, :]
            given = _given(from_x, order, inputs, first + UNIT, within, UNIT, EVEN)
            numbers = tl.trans(_numbers(_taken(held, KIND, 1), KIND, x.dtype.element_ty, ZERO))
            if GROUP == 0:
                sums = tl.dot(given, numbers, sums, input_precision="ieee")
            elif SAME:
                products = tl.dot(given, numbers, products, input_precision="ieee")
            else:
                products = tl.dot(given, numbers, input_precision="ieee")
            if MINIMA:
                wide = wide + given.to(tl.float32) if SAME else given.to(tl.float32)
        if MINIMA:
            sums += tl.sum(wide, 1)[:, None] * next_least[None, :]
        if GROUP != 0:
            sums += products * next_by[None, :]
            by, least = _group(
                scale, scale_factors, zeros, minimum, minimum_factors, first + STEP, inputs, n, inside, outputs, GROUP,
                SHARED, MINIMUM_SHARED, ZERO,
            )  # fmt: skip
            next_by, next_least = by, least
            if PAIRED and not SAME:
                next_by, next_least = _group(
                    scale, scale_factors, zeros, minimum, minimum_factors, first + STEP + UNIT, inputs, n, inside,
                    outputs, GROUP, SHARED, MINIMUM_SHARED, ZERO,
                )  # fmt: skip
    if GROUP == 0:
        sums *= by[None, :]
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
    scale,  # [groups, outputs]
    scale_factors,
    zeros,
    minimum,
    minimum_factors,
    order,  # [inputs]
    out,  # [last - first, inputs]
    inputs,
    outputs,
    first,
    last,
    unit_stride,
    output_stride,
    KIND: tl.constexpr,
    UNIT: tl.constexpr,
    GROUP: tl.constexpr,
    SHARED: tl.constexpr,
    MINIMUM_SHARED: tl.constexpr,
    ZERO: tl.constexpr,
    TILE_N: tl.constexpr,
):
    PARTS: tl.constexpr = 2 if KIND == _INT4 else 1
    unit = tl.program_id(0)
    n = first + tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    inside = n < last
    place = tl.arange(0, UNIT)
    at = codes + n.to(tl.int64)[:, None] * output_stride + unit * unit_stride + place[None, :]
    held = tl.load(at, mask=inside[:, None], other=0)
    for part in tl.static_range(PARTS):
        begin = (unit * PARTS + part) * UNIT
        k = begin + place
        present = inside[:, None] & (k < inputs)[None, :]
        by, least = _group(
            scale, scale_factors, None, minimum, minimum_factors, begin, inputs, n, inside, outputs, GROUP, SHARED,
            MINIMUM_SHARED, ZERO,
        )  # fmt: skip
        if order is not None:
            k = tl.load(order + k, mask=k < inputs, other=0)
        numbers = _numbers(_taken(held, KIND, part), KIND, tl.float32, ZERO)
        if zeros is not None:
            group = tl.minimum(begin, inputs - 1) // GROUP
            zero = tl.load(zeros + group * outputs + n, mask=inside, other=0).to(tl.float32)
            numbers += ZERO - zero[:, None]
        numbers *= by[:, None]
        if minimum is not None:
            numbers += least[:, None]
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
        x, weight.codes, *_operands(weight), bias_now, into, rows, weight.inputs, weight.outputs,
        triton.cdiv(units, count), x.stride(0), weight.outputs if count > 1 else out.stride(0), rows * weight.outputs,
        unit_stride, output_stride, EVEN=even, TILE_M=tile_m, TILE_N=tile_n, **_sizes(weight),
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
        weight.codes, *_operands(weight), out, weight.inputs, weight.outputs, first, first + len(out), unit_stride,
        output_stride, **_sizes(weight), **config.options,
    )  # fmt: skip


def _operands(weight: CodeMatrix) -> tuple[torch.Tensor | None, ...]:
    scale, least = weight.scale, weight.minimum
    minima = (None, None) if least is None else (least.values, least.factors)
    return scale.values, scale.factors, weight.zeros, *minima, weight.order


def _sizes(weight: CodeMatrix) -> dict[str, int]:
    whole = weight.group >= weight.inputs and weight.minimum is None and weight.zeros is None
    return {
        "KIND": int(weight.kind),
        "UNIT": weight.unit,
        "GROUP": 0 if whole else weight.group,
        "SHARED": weight.scale.shared,
        "MINIMUM_SHARED": 1 if weight.minimum is None else weight.minimum.shared,
        "ZERO": weight.zero,
    }
