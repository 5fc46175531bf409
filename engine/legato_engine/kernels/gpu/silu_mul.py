"""SiLU(gate) · up in Triton. The maths is in `reference/silu_mul.md`."""

import torch
import triton
import triton.language as tl

from legato_engine.kernels.gpu.configurations import Configuration


@triton.jit
def _silu_mul(
    gate_up,  # [rows, 2 · INNER]
    out,  # [rows, INNER]
    gate_up_stride,
    out_stride,
    INNER: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < INNER
    gate = tl.load(gate_up + row * gate_up_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * gate_up_stride + INNER + column, mask=inside, other=0.0).to(tl.float32)
    # SiLU is rounded before the product, as where torch computes one after the other.
    silu = (gate / (1 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * out_stride + column, (silu * up).to(out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor, config: Configuration) -> None:
    """gate_up [rows, 2 · inner], gate first → out [rows, inner], neighbours in a row contiguous. May not overlap.

    Tile: WIDTH, the results of a row that a program computes.
    """
    rows, inner = out.shape
    _silu_mul[(rows, triton.cdiv(inner, config.tiles["WIDTH"]))](
        gate_up, out, gate_up.stride(0), out.stride(0), INNER=inner, **config.options
    )
