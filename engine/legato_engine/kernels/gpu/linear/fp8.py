"""Products of FP8 in Triton: activations are quantized by token, or by token and group of inputs, and multiplied with
FP8 weights. The maths is in `reference/linear.md`.

The tensor cores of sm_90 add products of FP8 with fewer bits than float32 has, so sums of a unit are added in float32.
"""

import torch
import triton
import triton.language as tl

from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.float8 import Float8Rows, quantized
from legato_engine.kernels.gpu.linear.codes import CodeMatrix

_BAND = tl.constexpr(8)  # tiles of rows that are computed together, because they share weights in the cache


@triton.jit(do_not_specialize=["rows"])
def _quantize_rows(
    x,  # [rows, INPUTS]
    out,  # e4m3 [rows, INPUTS]
    scales,  # [groups, rows]
    rows,
    x_stride,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,  # GROUP, padded to a power of two
    GROUPS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    place = tl.arange(0, WIDTH)[None, :]
    column = group[:, None] * GROUP + place
    inside = (place < GROUP) & (column < INPUTS)
    numbers = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    codes, scale = quantized(numbers, 1)
    tl.store(out + row * INPUTS + column, codes, mask=inside)
    tl.store(scales + group * rows + row, scale, mask=group * GROUP < INPUTS)


def quantize_rows(x: torch.Tensor, out: Float8Rows, config: Configuration) -> None:
    """x [rows, inputs], neighbours in a row contiguous → `out`. Tile: WIDTH, the inputs of a program."""
    (rows, inputs), (codes, scales, group) = x.shape, out
    width = triton.next_power_of_2(min(group, inputs))
    groups = max(1, config.tiles["WIDTH"] // width)
    _quantize_rows[(rows, triton.cdiv(len(scales), groups))](
        x, codes, scales, rows, x.stride(0), INPUTS=inputs, GROUP=group, WIDTH=width, GROUPS=groups,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip


@triton.jit
def _scales(x_scales, scale, base, group, row, n, within, inside, rows, outputs):
    """Scales of a group: of rows [TILE_M, 1] and of outputs [1, TILE_N]."""
    row_scale = tl.load(x_scales + group * rows + row, mask=within, other=0.0)
    output_scale = tl.load(scale + (base + group) * outputs + n, mask=inside, other=0.0)
    return row_scale[:, None], output_scale[None, :]


@triton.jit
def multiply_codes_of_both(
    from_x, x_scales, row, within, rows, from_codes, scale, base, n, inside, inputs, outputs, UNIT: tl.constexpr,
    GROUP: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
):  # fmt: skip
    """x · weightᵀ, float32 [TILE_M, TILE_N], for x [rows, inputs] with x_scales [groups, rows].

    from_x points to the rows `row` [TILE_M], which exist `within`; from_codes to the outputs n [TILE_N], of which those
    `inside` exist; `base` is the weight's first group of scales."""
    sums = tl.zeros([TILE_M, TILE_N], tl.float32)
    # Scales of the next unit are carried: loaded and used in one iteration, the loop would wait for them.
    row_scale, output_scale = _scales(x_scales, scale, base, 0, row, n, within, inside, rows, outputs)
    for first in tl.range(0, inputs, UNIT):
        x_tile = tl.load(from_x + first, mask=within[:, None], other=0.0)
        weight = tl.load(from_codes + first, mask=inside[None, :], other=0.0)
        if GROUP == 0:
            sums = tl.dot(x_tile, weight, sums, max_num_imprecise_acc=UNIT)
        else:
            sums += tl.dot(x_tile, weight) * (row_scale * output_scale)
            group = tl.minimum(first + UNIT, inputs - 1) // GROUP
            row_scale, output_scale = _scales(x_scales, scale, base, group, row, n, within, inside, rows, outputs)
    if GROUP == 0:
        sums *= row_scale * output_scale
    return sums


@triton.jit(do_not_specialize=["rows"])
def _multiply_fp8(
    x,  # e4m3 [rows, inputs]
    x_scales,  # [groups, rows]
    codes,  # e4m3 [outputs, inputs]
    scale,  # [groups, outputs]
    bias,  # [outputs]
    out,  # [rows, outputs]
    rows,
    inputs,
    outputs,
    out_stride,
    UNIT: tl.constexpr,  # divides inputs and GROUP
    GROUP: tl.constexpr,  # 0: all inputs share a scale
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(rows, TILE_M), tl.cdiv(outputs, TILE_N)
    band, place = tl.program_id(0) // (_BAND * tiles_n), tl.program_id(0) % (_BAND * tiles_n)
    height = tl.minimum(tiles_m - band * _BAND, _BAND)
    row = (band * _BAND + place % height) * TILE_M + tl.arange(0, TILE_M)
    n = place // height * TILE_N + tl.arange(0, TILE_N)
    within, inside = row < rows, n < outputs
    k = tl.arange(0, UNIT)
    from_x = x + row.to(tl.int64)[:, None] * inputs + k[None, :]
    from_codes = codes + n.to(tl.int64)[None, :] * inputs + k[:, None]
    sums = multiply_codes_of_both(
        from_x, x_scales, row, within, rows, from_codes, scale, 0, n, inside, inputs, outputs, UNIT, GROUP, TILE_M,
        TILE_N,
    )  # fmt: skip
    if bias is not None:
        sums += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)[None, :]
    to = out + row.to(tl.int64)[:, None] * out_stride + n[None, :]
    tl.store(to, sums.to(out.dtype.element_ty), mask=within[:, None] & inside[None, :])


def multiply_fp8(
    x: Float8Rows, weight: CodeMatrix, bias: torch.Tensor | None, out: torch.Tensor, config: Configuration
) -> None:
    """out [rows, outputs] = x · weightᵀ + bias; x and the weight have the same groups. Units have at least 32 inputs.
    Tiles: TILE_M, TILE_N."""
    rows, inputs = x.codes.shape
    tile_m, tile_n = config.tiles["TILE_M"], config.tiles["TILE_N"]
    group = 0 if weight.group >= inputs else weight.group
    _multiply_fp8[(triton.cdiv(rows, tile_m) * triton.cdiv(weight.outputs, tile_n),)](
        x.codes, x.scales, weight.codes.view(torch.float8_e4m3fn), weight.scale.values, bias, out, rows, inputs,
        weight.outputs, out.stride(0), UNIT=weight.unit, GROUP=group, **config.options,
    )  # fmt: skip
