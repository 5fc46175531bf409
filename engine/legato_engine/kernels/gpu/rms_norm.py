"""RMSNorm in Triton: whole rows in registers, so that a row is read once. The maths is in `reference/rms_norm.md`.

Results may be quantized to FP8, too, which saves the next product a pass over them.
"""

import torch
import triton
import triton.language as tl

from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.float8 import Float8Rows, quantized


@triton.jit(do_not_specialize=["rows"])  # compiled once for all sizes of a step
def _add_rms_norm(
    x,  # [rows, hidden], or None
    residual,  # [rows, hidden]
    weight,  # [hidden]
    out,  # [rows, hidden]
    codes,  # e4m3 [rows, hidden], or None
    scales,  # [groups, rows], or None
    rows,
    x_stride,
    residual_stride,
    out_stride,
    eps,
    BY: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,  # HIDDEN, padded to a power of two
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,  # numbers with a scale
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    inside = (row < rows) & (column < HIDDEN)
    at = residual + row * residual_stride + column
    wide = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if x is not None:
        added = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        if BY != 1.0:
            added *= BY
        wide += added
        stored = wide.to(residual.dtype.element_ty)
        tl.store(at, stored, mask=inside)
        wide = stored.to(tl.float32)  # normed as stored, because the next layer adds to the stored value
    scale = tl.rsqrt(tl.sum(wide * wide, 1) / HIDDEN + eps)
    normed = (wide * scale[:, None]).to(weight.dtype.element_ty).to(tl.float32)
    by = tl.load(weight + column, mask=column < HIDDEN, other=0.0).to(tl.float32)
    result = (normed * by).to(out.dtype.element_ty)
    tl.store(out + row * out_stride + column, result, mask=inside)
    if codes is not None:
        groups = tl.reshape(result.to(tl.float32), [ROWS, WIDTH // GROUP, GROUP])
        rounded, group_scales = quantized(groups, 2)
        tl.store(codes + row * HIDDEN + column, tl.reshape(rounded, [ROWS, WIDTH]), mask=inside)
        group = tl.arange(0, WIDTH // GROUP)[None, :]
        tl.store(scales + group * rows + row, group_scales, mask=(row < rows) & (group * GROUP < HIDDEN))


def add_rms_norm(
    x: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    config: Configuration,
    by: float = 1.0,
    rounded: Float8Rows | None = None,
) -> None:
    """residual += x · by in place, if there is an x; out = RMSNorm of that sum, times `weight`.

    x, residual, out [rows, hidden], neighbours in a row contiguous; out may be residual; weight [hidden], in float32 if
    the norm is not to be rounded before the product. Statistics in float32.
    `rounded` receives the results in e4m3. Tile: ROWS, the rows that a program norms.
    """
    rows, hidden = residual.shape
    width = triton.next_power_of_2(hidden)
    _add_rms_norm[(triton.cdiv(rows, config.tiles["ROWS"]),)](
        x,
        residual,
        weight,
        out,
        None if rounded is None else rounded.codes,
        None if rounded is None else rounded.scales,
        rows,
        0 if x is None else x.stride(0),
        residual.stride(0),
        out.stride(0),
        eps,
        BY=by,
        HIDDEN=hidden,
        WIDTH=width,
        GROUP=width if rounded is None or rounded.group >= hidden else rounded.group,
        **config.options,
    )
