"""Linear layers as written down: see README."""

import torch


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [rows, in], weight [out, in] → [rows, out]."""
    return (x.float() @ weight.float().T).to(x.dtype)


def packed4(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
    """codes uint8 [out, in] of 0 … 15; scale, minimum [out, in/32]: one pair for each 32 inputs."""
    weight = codes.float() * scale.repeat_interleave(32, 1) + minimum.repeat_interleave(32, 1)
    return linear(x, weight)
