"""Products of blocks of tokens with the weights of their expert in Triton.

A program computes some outputs of a block, whose expert is in the table of `arrange`. Codes are multiplied as in
`linear.multiply` in blocks of few rows; in blocks of more, they are dequantized in registers, or multiplied with FP8
activations as in `linear.fp8`. If blocks are too few to fill the chip, inputs are split among programs, and `combine`
adds their sums.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.experts.arrange import FIELDS, PairBlocks
from legato_engine.kernels.gpu.experts.weights import DenseExperts, ExpertWeights
from legato_engine.kernels.gpu.float8 import Float8Rows
from legato_engine.kernels.gpu.linear.fp8 import multiply_codes_of_both
from legato_engine.kernels.gpu.linear.units import (
    format_of,
    group_of,
    load_inputs,
    multiply_units,
    numbers_of,
    scaling,
    unit_codes,
)
from legato_engine.kernels.routing import Gating

_FIELDS = tl.constexpr(FIELDS)
_BAND = tl.constexpr(8)  # blocks that are computed together, because neighbours share weights in the cache
_MOST_SCALED = tl.constexpr(32)  # rows of a block; of more, it is cheaper to scale weights than sums
_LEAST_INPUTS = 256  # of a split
_ACTIVATIONS = {None: 0, Gating.SILU: 1, Gating.CLAMPED: 2}
_SILU = tl.constexpr(_ACTIVATIONS[Gating.SILU])


class ExpertProduct(NamedTuple):
    """One of the two products of a mixture. `sources` neighbouring pairs have the same row of x."""

    weights: ExpertWeights
    bias: torch.Tensor | None  # [experts, outputs]
    gating: Gating | None  # the activation that is fused into the product of gate and up
    sources: int


@triton.jit
def _activate(gate, up, ACTIVATION: tl.constexpr):
    if ACTIVATION == _SILU:
        activated = gate / (1 + tl.exp(-gate)) * up
    else:
        gate = tl.where(gate > 7.0, 7.0, gate)  # keeps NaN
        up = tl.where(up > 7.0, 7.0, tl.where(up < -7.0, -7.0, up))
        activated = gate / (1 + tl.exp(-1.702 * gate)) * (up + 1)
    return activated


@triton.jit
def _multiply_dense(
    from_x, within, inputs, from_weights, inside, begin, end, EVEN: tl.constexpr, TILE_M: tl.constexpr,
    TILE_N: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """x · weightᵀ over the inputs from `begin` to `end`; from_weights [1, TILE_N] points to the outputs."""
    k = tl.arange(0, TILE_K)
    sums = tl.zeros([TILE_M, TILE_N], tl.float32)
    for first in tl.range(begin, end, TILE_K):
        present = first + k < inputs
        x = tl.load(from_x + (first + k)[None, :], mask=within if EVEN else within & present[None, :], other=0.0)
        at = from_weights + (first + k)[:, None]
        weights = tl.load(at) if EVEN else tl.load(at, mask=inside[None, :] & present[:, None], other=0.0)
        sums = tl.dot(x, weights, sums, input_precision="ieee")
    return sums


@triton.jit
def _dequantized(code_bytes, scaling, base, first, inputs, n, inside, outputs, dtype: tl.constexpr,
                 FORMAT: tl.constexpr, PART: tl.constexpr):  # fmt: skip
    """A unit of weights in `dtype`, rounded once: [TILE_N, UNIT]."""
    scale, minimum = group_of(scaling, base, first, inputs, n, inside, outputs, FORMAT)
    numbers = numbers_of(unit_codes(code_bytes, FORMAT.PAIRED, PART), FORMAT.KIND, tl.float32, FORMAT.ZERO)
    numbers *= scale[:, None]
    if scaling.minimum is not None or scaling.zeros is not None:
        numbers += minimum[:, None]
    return numbers.to(dtype)


@triton.jit
def _multiply_dequantized(
    from_x, within, order, inputs, from_codes, scaling, base, n, inside, outputs, begin, end, unit_stride,
    FORMAT: tl.constexpr, EVEN: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
):  # fmt: skip
    """As `multiply_units`, with weights that are dequantized before the product."""
    STEP: tl.constexpr = 2 * FORMAT.UNIT if FORMAT.PAIRED else FORMAT.UNIT
    sums = tl.zeros([TILE_M, TILE_N], tl.float32)
    for unit in tl.range(begin, end):
        at = from_codes + unit * unit_stride
        code_bytes = tl.load(at) if EVEN else tl.load(at, mask=inside[:, None], other=0)
        for part in tl.static_range(STEP // FORMAT.UNIT):
            first = unit * STEP + part * FORMAT.UNIT
            x = load_inputs(from_x, order, inputs, first, within, FORMAT.UNIT, EVEN)
            weights = _dequantized(code_bytes, scaling, base, first, inputs, n, inside, outputs, x.dtype, FORMAT, part)
            sums = tl.dot(x, tl.trans(weights), sums, input_precision="ieee")
    return sums


@triton.jit
def _multiply_codes(
    from_x, x_scales, row, within, x_rows, from_expert, scaling, order, expert, n, inside, inputs, outputs, begin,
    steps_of_split, unit_stride, output_stride, FORMAT: tl.constexpr, EVEN: tl.constexpr, TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):  # fmt: skip
    """x · weightᵀ for codes, over the `steps_of_split` units from `begin` on, or over all inputs with x in e4m3."""
    STEP: tl.constexpr = 2 * FORMAT.UNIT if FORMAT.PAIRED else FORMAT.UNIT
    end = tl.minimum(begin + steps_of_split, tl.cdiv(inputs, STEP))
    base = expert * (tl.cdiv(inputs, FORMAT.GROUP) if FORMAT.GROUP else 1)
    k = tl.arange(0, FORMAT.UNIT)
    from_codes = from_expert + n.to(tl.int64)[:, None] * output_stride + k[None, :]
    if order is not None:
        order += expert * inputs
    if x_scales is not None:
        from_codes = from_expert + n.to(tl.int64)[None, :] * output_stride + k[:, None]
        sums = multiply_codes_of_both(
            from_x + k[None, :], x_scales, row, within, x_rows, from_codes, scaling.scale, base, n, inside, inputs,
            outputs, FORMAT.UNIT, FORMAT.GROUP, TILE_M, TILE_N,
        )  # fmt: skip
    elif TILE_M <= _MOST_SCALED:
        sums = multiply_units(
            from_x, within[:, None], order, inputs, from_codes, scaling, base, n, inside, outputs, begin, end,
            unit_stride, FORMAT, EVEN, TILE_M, TILE_N,
        )  # fmt: skip
    else:
        sums = _multiply_dequantized(
            from_x, within[:, None], order, inputs, from_codes, scaling, base, n, inside, outputs, begin, end,
            unit_stride, FORMAT, EVEN, TILE_M, TILE_N,
        )  # fmt: skip
    return sums


@triton.jit
def _store(
    to, sums, within, column, n, inside, outputs, ACTIVATION: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr
):
    """Stores sums, or the activations of gates and ups that alternate in them; `to` [TILE_M, 1] points to rows."""
    dtype = to.dtype.element_ty
    if ACTIVATION:
        gate, up = tl.split(tl.reshape(sums, [TILE_M, TILE_N // 2, 2]))
        at = column * (TILE_N // 2) + tl.arange(0, TILE_N // 2)
        activated = _activate(gate, up, ACTIVATION).to(dtype)
        tl.store(to + at[None, :], activated, mask=within & (at < outputs // 2)[None, :])
    else:
        tl.store(to + n[None, :], sums.to(dtype), mask=within & inside[None, :])


@triton.jit
def _tile(most_blocks, columns):
    """The block and the tile of outputs of a program: bands of blocks, and in each, tile by tile."""
    band, place = tl.program_id(0) // (_BAND * columns), tl.program_id(0) % (_BAND * columns)
    height = tl.minimum(most_blocks - band * _BAND, _BAND)
    return band * _BAND + place % height, place // height


@triton.jit(do_not_specialize=["x_rows", "most_blocks", "steps_of_split", "split_stride"])
def _multiply_experts(
    x,  # [rows, inputs]
    x_scales,  # [groups, rows] of x in e4m3, or None
    weights,  # [experts, outputs, inputs], or codes
    scaling,  # CodeScaling, or None
    order,  # [experts, inputs], or None
    bias,  # [experts, outputs], or None
    pairs,
    blocks,  # [most_blocks, 3]
    out,  # [splits, pairs, outputs], or half as many outputs after an activation
    x_rows,
    most_blocks,
    inputs,
    outputs,
    steps_of_split,
    x_stride,
    out_stride,
    split_stride,
    expert_stride,
    unit_stride,
    output_stride,
    FORMAT: tl.constexpr,  # CodeFormat, or None
    ACTIVATION: tl.constexpr,
    SOURCES: tl.constexpr,
    EVEN: tl.constexpr,  # no tile of weights has outputs or inputs beyond them
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
):
    block, column = _tile(most_blocks, tl.cdiv(outputs, TILE_N))
    rows = tl.load(blocks + block * _FIELDS + 2)
    if rows == 0:
        return
    expert, lane = tl.load(blocks + block * _FIELDS), tl.arange(0, TILE_M)
    pair = tl.load(pairs + tl.load(blocks + block * _FIELDS + 1) + lane, mask=lane < rows, other=0)
    within = (lane < rows)[:, None]
    n = column * TILE_N + tl.arange(0, TILE_N)
    inside = n < outputs
    row = pair // SOURCES
    from_x = x + row.to(tl.int64)[:, None] * x_stride
    from_expert = weights + expert.to(tl.int64) * expert_stride
    begin = tl.program_id(1) * steps_of_split
    if FORMAT is None:
        first, end = begin * TILE_K, tl.minimum((begin + steps_of_split) * TILE_K, inputs)
        from_weights = from_expert + n.to(tl.int64)[None, :] * output_stride
        sums = _multiply_dense(from_x, within, inputs, from_weights, inside, first, end, EVEN, TILE_M, TILE_N, TILE_K)
    else:
        sums = _multiply_codes(
            from_x, x_scales, row, lane < rows, x_rows, from_expert, scaling, order, expert, n, inside, inputs, outputs,
            begin, steps_of_split, unit_stride, output_stride, FORMAT, EVEN, TILE_M, TILE_N,
        )  # fmt: skip
    if bias is not None:
        once = inside & (tl.program_id(1) == 0)
        sums += tl.load(bias + expert * outputs + n, mask=once, other=0.0).to(tl.float32)[None, :]
    to = out + tl.program_id(1).to(tl.int64) * split_stride + pair.to(tl.int64)[:, None] * out_stride
    _store(to, sums, within, column, n, inside, outputs, ACTIVATION, TILE_M, TILE_N)


def product_splits(weights: ExpertWeights, most_blocks: int, processors: int, config: Configuration) -> int:
    """The parts that inputs are split into: a power of two. Tiles: TILE_N outputs, and PROGRAMS, the programs for each
    processor that fill the chip."""
    programs = most_blocks * triton.cdiv(weights.outputs, config.tiles["TILE_N"])
    most = min(processors * config.tiles["PROGRAMS"] // programs, weights.inputs // _LEAST_INPUTS)
    return 1 << most.bit_length() - 1 if most else 1


def parts_needed(processors: int, config: Configuration) -> int:
    """The most numbers that sums of splits take."""
    return processors * config.tiles["PROGRAMS"] * config.tiles["TILE_M"] * config.tiles["TILE_N"]


def multiply(
    x: torch.Tensor | Float8Rows, product: ExpertProduct, blocks: PairBlocks, out: torch.Tensor,
    config: Configuration,
) -> None:  # fmt: skip
    """Multiplies the row of each pair with the weights of its expert, and writes the row of the pair in `out`.

    x [rows, inputs], out [splits, pairs, outputs], neighbours in a row contiguous; x may be in FP8 with the groups of
    the weights. With an activation, out has half of the outputs. Sums of several splits are added later, so there is no
    activation then, and x is not in FP8. Tiles: TILE_M as `blocks.rows`, TILE_N, and TILE_K inputs of a dense weight.
    """
    weights, tiles, count = product.weights, config.tiles, len(out)
    numbers, x_scales = (x.codes, x.scales) if isinstance(x, Float8Rows) else (x, None)
    assert tiles["TILE_M"] == blocks.rows
    assert count == 1 or (product.gating is None and x_scales is None)
    if isinstance(weights, DenseExperts):
        given, scales, order, form, step = weights.weights, None, None, None, tiles["TILE_K"]
        strides = given.stride(0), 0, given.stride(1)
    else:
        matrix = weights.matrix
        given, scales, order = matrix.codes, scaling(matrix), matrix.order
        if x_scales is not None:
            given = given.view(torch.float8_e4m3fn)
        form, step = format_of(matrix), matrix.unit * 8 // matrix.bits
        strides = given.stride(0), *matrix.strides
    columns = triton.cdiv(weights.outputs, tiles["TILE_N"])
    even = not weights.outputs % tiles["TILE_N"] and not weights.inputs % step
    _multiply_experts[(len(blocks.table) * columns, count)](
        numbers, x_scales, given, scales, order, product.bias, blocks.pairs, blocks.table, out, len(numbers),
        len(blocks.table), weights.inputs, weights.outputs, triton.cdiv(triton.cdiv(weights.inputs, step), count),
        numbers.stride(0), out.stride(1), out.stride(0), *strides, FORMAT=form,
        ACTIVATION=_ACTIVATIONS[product.gating], SOURCES=product.sources, EVEN=even, TILE_M=tiles["TILE_M"],
        TILE_N=tiles["TILE_N"], TILE_K=tiles["TILE_K"], num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
