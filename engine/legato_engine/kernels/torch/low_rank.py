"""Low-rank updates of some tokens' outputs in torch: any device, any sizes."""

from collections.abc import Iterable

import torch


def add(
    x: torch.Tensor,
    tokens: torch.Tensor,
    down: torch.Tensor,
    ups: Iterable[tuple[slice, int, torch.Tensor]],
    out: torch.Tensor,
) -> None:
    """out[tokens] += B (A x[tokens]), for each of `ups` = (its ranks, its first output, B [outputs, rank]).

    x [rows, in], tokens [some], down [ranks, in]; all but `tokens` of one dtype, or x of a narrower one."""
    inner = x[tokens].to(down.dtype) @ down.T
    for ranks, first, b in ups:
        out[:, first : first + len(b)].index_add_(0, tokens, inner[:, ranks] @ b.T)
