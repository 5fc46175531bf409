"""SiLU(gate) · up, or GELU(gate) · up, in Triton. The maths is in `reference/silu_mul.md`.

Results may be quantized to FP8, too, which saves the next product a pass over them.
"""

import torch
import triton
import triton.language as tl

from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.float8 import Float8Rows, coded, quantized, scale_for

_WIDTHS_OF_A_ROW = 4  # tiles of a program that computes a whole row, in WIDTHs; it has twice the warps


@triton.jit
def _gated(gate_up, column, inside, out, INNER: tl.constexpr, GELU: tl.constexpr):
    """The results of a row for these columns, in the type of `out`."""
    gate = tl.load(gate_up + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + INNER + column, mask=inside, other=0.0).to(tl.float32)
    argument = gate
    if GELU:  # by tanh, as a sigmoid
        argument = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    # Rounded before the product, as where torch computes one after the other.
    activated = (gate / (1 + tl.exp(-argument))).to(out.dtype.element_ty).to(tl.float32)
    return (activated * up).to(out.dtype.element_ty)


@triton.jit(do_not_specialize=["rows"])
def _silu_mul(
    gate_up,  # [rows, 2 · INNER]
    out,  # [rows, INNER]
    codes,  # e4m3 [rows, INNER], or None
    scales,  # [groups, rows], or None
    rows,
    gate_up_stride,
    out_stride,
    INNER: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,  # numbers with a scale; divides WIDTH
    GELU: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < INNER
    result = _gated(gate_up + row * gate_up_stride, column, inside, out, INNER, GELU)
    tl.store(out + row * out_stride + column, result, mask=inside)
    if codes is not None:
        rounded, scale = quantized(tl.reshape(result.to(tl.float32), [WIDTH // GROUP, GROUP]), 1)
        tl.store(codes + row * INNER + column, tl.reshape(rounded, [WIDTH]), mask=inside)
        group = tl.program_id(1) * (WIDTH // GROUP) + tl.arange(0, WIDTH // GROUP)
        tl.store(scales + group * rows + row, scale, mask=group * GROUP < INNER)


@triton.jit
def _silu_mul_row(
    gate_up,  # [rows, 2 · INNER]
    out,  # [rows, INNER]
    codes,  # e4m3 [rows, INNER]
    scales,  # [1, rows]
    gate_up_stride,
    out_stride,
    INNER: tl.constexpr,
    WIDTH: tl.constexpr,
    GELU: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    gate_up += row * gate_up_stride
    out += row * out_stride
    largest = tl.zeros([WIDTH], tl.float32)
    for first in tl.range(0, INNER, WIDTH):
        column = first + tl.arange(0, WIDTH)
        result = _gated(gate_up, column, column < INNER, out, INNER, GELU)
        tl.store(out + column, result, mask=column < INNER)
        largest = tl.maximum(largest, tl.abs(result.to(tl.float32)))
    scale = scale_for(tl.max(largest, 0))
    tl.store(scales + row, scale)
    tl.debug_barrier()  # other threads may have stored the numbers that are loaded next
    for first in tl.range(0, INNER, WIDTH):
        column = first + tl.arange(0, WIDTH)
        result = tl.load(out + column, mask=column < INNER, other=0.0).to(tl.float32)
        tl.store(codes + row * INNER + column, coded(result, scale), mask=column < INNER)


def silu_mul(
    gate_up: torch.Tensor, out: torch.Tensor, config: Configuration, rounded: Float8Rows | None = None
) -> None:
    """gate_up [rows, 2 · inner], gate first → out [rows, inner], neighbours in a row contiguous. May not overlap.

    `rounded` receives the results in e4m3. Tile: WIDTH, the results of a row that are computed together.
    """
    _launch(gate_up, out, config, rounded, gelu=False)


def gelu_mul(
    gate_up: torch.Tensor, out: torch.Tensor, config: Configuration, rounded: Float8Rows | None = None
) -> None:
    """As `silu_mul`, with GELU approximated by tanh."""
    _launch(gate_up, out, config, rounded, gelu=True)


def _launch(
    gate_up: torch.Tensor, out: torch.Tensor, config: Configuration, rounded: Float8Rows | None, gelu: bool
) -> None:
    (rows, inner), strides, width = out.shape, (gate_up.stride(0), out.stride(0)), config.tiles["WIDTH"]
    codes, scales, group = (None, None, width) if rounded is None else rounded
    if rounded is not None and group >= inner:
        _silu_mul_row[(rows,)](
            gate_up, out, codes, scales, *strides, INNER=inner, WIDTH=_WIDTHS_OF_A_ROW * width,
            GELU=gelu, num_warps=2 * config.warps, num_stages=config.stages,
        )  # fmt: skip
        return
    _silu_mul[(rows, triton.cdiv(inner, width))](
        gate_up, out, codes, scales, rows, *strides, INNER=inner, GROUP=group, GELU=gelu, **config.options
    )
