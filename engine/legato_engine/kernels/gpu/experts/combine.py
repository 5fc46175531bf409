"""Adds the results of a token's experts in Triton, in a fixed order."""

import torch
import triton
import triton.language as tl

from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.experts.route import ExpertChoice, PresentTokens


@triton.jit(do_not_specialize=["rows", "split_stride"])
def _combine(
    parts,  # [SPLITS, tokens · ACTIVE, hidden]
    weights,  # float32 [tokens, ACTIVE]
    added,  # [tokens, hidden], or None
    added_weights,  # float32 [tokens], or None
    starts,
    out,  # [tokens, hidden]
    rows,
    hidden,
    split_stride,
    added_stride,
    out_stride,
    SPLITS: tl.constexpr,
    ACTIVE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    present = token < tl.load(starts + rows)
    inside = (n < hidden) & present
    total = tl.zeros([WIDTH], tl.float32)
    for slot in tl.static_range(ACTIVE):
        pair = token * ACTIVE + slot
        result = tl.zeros([WIDTH], tl.float32)
        for split in tl.static_range(SPLITS):
            result += tl.load(parts + split * split_stride + pair * hidden + n, mask=inside, other=0.0).to(tl.float32)
        total += result * tl.load(weights + pair)
    if added is not None:
        result = tl.load(added + token * added_stride + n, mask=inside, other=0.0).to(tl.float32)
        if added_weights is not None:
            result *= tl.load(added_weights + token)
        total += result
    total = tl.where(present, total, 0.0)  # weights of padding are undefined
    tl.store(out + token * out_stride + n, total.to(out.dtype.element_ty), mask=n < hidden)


def combine(
    parts: torch.Tensor, choice: ExpertChoice, added: torch.Tensor | None, present: PresentTokens, out: torch.Tensor,
    config: Configuration,
) -> None:  # fmt: skip
    """out [tokens, hidden] = the weighted sums of the experts' results, plus `added` [tokens, hidden], times the weight
    of the shared expert if there is one. Padding becomes 0.

    parts [splits, tokens · active, hidden] are sums of pairs, contiguous. Tile: WIDTH, the results of a program.
    """
    (tokens, hidden), active = out.shape, choice.numbers.shape[1]
    _combine[(tokens, triton.cdiv(hidden, config.tiles["WIDTH"]))](
        parts, choice.weights, added, choice.shared, present.starts, out, present.rows, hidden, parts.stride(0),
        0 if added is None else added.stride(0), out.stride(0), SPLITS=len(parts), ACTIVE=active, **config.options,
    )  # fmt: skip
