"""Products of a few rows with quantized weights in Triton, and quantized weights in floating point for more rows. The
maths is in `reference/linear.md`.

A program multiplies the codes, which are exact in 16 bits, and scales the sums of each group in float32. If the outputs
are too few to fill the chip, inputs are split among programs, whose sums a second launch adds in a fixed order.
"""

import torch
import triton
import triton.language as tl

from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.linear.codes import CodeMatrix
from legato_engine.kernels.gpu.linear.units import (
    format_of,
    group_of,
    multiply_units,
    numbers_of,
    scaling,
    unit_codes,
)

_LEAST_UNITS = 8  # of a split: loads of fewer do not overlap
_ADDED = tl.constexpr(1024)  # outputs that a program adds


@triton.jit(do_not_specialize=["rows", "units_of_split", "split_stride"])  # compiled once for all sizes of a step
def _multiply_codes(
    x,  # [rows, inputs]
    codes,
    scaling,  # CodeScaling
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
    FORMAT: tl.constexpr,  # CodeFormat
    EVEN: tl.constexpr,  # no tile of codes has outputs or inputs beyond the weight
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    STEP: tl.constexpr = 2 * FORMAT.UNIT if FORMAT.PAIRED else FORMAT.UNIT
    row = tl.program_id(1) * TILE_M + tl.arange(0, TILE_M)
    n = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    inside = n < outputs
    within = row[:, None] < rows
    begin = tl.program_id(2) * units_of_split
    end = tl.minimum(begin + units_of_split, tl.cdiv(inputs, STEP))
    from_x = x + row.to(tl.int64)[:, None] * x_stride
    from_codes = codes + n.to(tl.int64)[:, None] * output_stride + tl.arange(0, FORMAT.UNIT)[None, :]
    sums = multiply_units(
        from_x, within, order, inputs, from_codes, scaling, 0, n, inside, outputs, begin, end, unit_stride, FORMAT,
        EVEN, TILE_M, TILE_N,
    )  # fmt: skip
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
    scaling,  # CodeScaling
    order,  # [inputs]
    out,  # [last - first, inputs]
    inputs,
    outputs,
    first,
    last,
    unit_stride,
    output_stride,
    FORMAT: tl.constexpr,  # CodeFormat
    TILE_N: tl.constexpr,
):
    PARTS: tl.constexpr = 2 if FORMAT.PAIRED else 1
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
        scale, minimum = group_of(scaling, 0, begin, inputs, n, inside, outputs, FORMAT)
        if order is not None:
            k = tl.load(order + k, mask=k < inputs, other=0)
        numbers = numbers_of(unit_codes(code_bytes, FORMAT.PAIRED, part), FORMAT.KIND, tl.float32, FORMAT.ZERO)
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
        x, weight.codes, scaling(weight), weight.order, bias_now, into, rows, weight.inputs, weight.outputs,
        triton.cdiv(units, count), x.stride(0), weight.outputs if count > 1 else out.stride(0), rows * weight.outputs,
        unit_stride, output_stride, FORMAT=format_of(weight), EVEN=even, TILE_M=tile_m, TILE_N=tile_n,
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
        weight.codes, scaling(weight), weight.order, out, weight.inputs, weight.outputs, first, first + len(out),
        unit_stride, output_stride, FORMAT=format_of(weight), **config.options,
    )  # fmt: skip
