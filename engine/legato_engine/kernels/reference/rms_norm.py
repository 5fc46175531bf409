"""Reference for RMSNorm: see `reference/rms_norm.md`."""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x, result [rows, hidden]; weight [hidden]. Statistics in float32 whatever x is."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, by: float = 1.0
) -> torch.Tensor:
    """Adds x · by to `residual` in place, then norms that sum."""
    residual += x * by
    return rms_norm(residual, weight, eps)
