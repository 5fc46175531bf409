"""Reference for linear layers: see `reference/linear.md`."""

import torch


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [rows, in], weight [out, in] → [rows, out]."""
    return (x.float() @ weight.float().T).to(x.dtype)


def dequantized(codes: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
    """codes [out, in]; scale, minimum [out, groups]: one pair for each group of neighbouring inputs."""
    group = codes.shape[1] // scale.shape[1]
    return codes.float() * scale.repeat_interleave(group, 1) + minimum.repeat_interleave(group, 1)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """x [rows, in] as 8-bit codes, times one scale for each group of 32 inputs."""
    groups = x.view(len(x), -1, 32)
    most = groups.abs().amax(2, keepdim=True)
    by = torch.full_like(most, 127) / most  # not `127 / most`, which torch computes as a reciprocal, rounded twice
    codes = torch.where(most > 0, groups * by, 0.0).round()
    return (codes * (most / 127)).view(x.shape)
