"""Reference for low-rank updates: token by token and projection by projection."""

from collections.abc import Iterable

import torch


def add(
    x: torch.Tensor,
    tokens: torch.Tensor,
    down: torch.Tensor,
    ups: Iterable[tuple[slice, int, torch.Tensor]],
    out: torch.Tensor,
) -> None:
    """As `torch.add`, in float64."""
    for token in tokens.tolist():
        for ranks, first, b in ups:
            inner = down[ranks].double() @ x[token].double()
            out[token, first : first + len(b)] += (b.double() @ inner).to(out.dtype)
