"""Linear layers as written down: see README."""

import torch


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [rows, in], weight [out, in] → [rows, out]."""
    return (x.float() @ weight.float().T).to(x.dtype)


def dequantized(codes: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
    """codes [out, in]; scale, minimum [out, groups]: one pair for each group of neighbouring inputs."""
    group = codes.shape[1] // scale.shape[1]
    return codes.float() * scale.repeat_interleave(group, 1) + minimum.repeat_interleave(group, 1)
