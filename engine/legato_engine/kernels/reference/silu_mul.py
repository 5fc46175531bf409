"""Reference for SiLU(gate) · up: see `reference/silu_mul.md`."""

import torch


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [rows, 2 · inner] (gate first) → [rows, inner]."""
    gate, up = gate_up.chunk(2, -1)
    return gate * torch.sigmoid(gate) * up
