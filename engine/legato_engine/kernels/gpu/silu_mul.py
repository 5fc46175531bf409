"""SiLU(gate) · up, or GELU(gate) · up, in Triton. The maths is in `reference/silu_mul.md`."""

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
    GELU: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < INNER
    gate = tl.load(gate_up + row * gate_up_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * gate_up_stride + INNER + column, mask=inside, other=0.0).to(tl.float32)
    argument = gate
    if GELU:  # by tanh, as a sigmoid
        argument = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    # Rounded before the product, as where torch computes one after the other.
    activated = (gate / (1 + tl.exp(-argument))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * out_stride + column, (activated * up).to(out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor, config: Configuration) -> None:
    """gate_up [rows, 2 · inner], gate first → out [rows, inner], neighbours in a row contiguous. May not overlap.

    Tile: WIDTH, the results of a row that a program computes.
    """
    _launch(gate_up, out, config, gelu=False)


def gelu_mul(gate_up: torch.Tensor, out: torch.Tensor, config: Configuration) -> None:
    """As `silu_mul`, with GELU approximated by tanh."""
    _launch(gate_up, out, config, gelu=True)


def _launch(gate_up: torch.Tensor, out: torch.Tensor, config: Configuration, gelu: bool) -> None:
    rows, inner = out.shape
    _silu_mul[(rows, triton.cdiv(inner, config.tiles["WIDTH"]))](
        gate_up, out, gate_up.stride(0), out.stride(0), INNER=inner, GELU=gelu, **config.options
    )
