"""Reference for SiLU(gate) · up and GELU(gate) · up: see `reference/silu_mul.md`."""

from math import pi, sqrt

import torch


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [rows, 2 · inner] (gate first) → [rows, inner]."""
    gate, up = gate_up.chunk(2, -1)
    return gate * torch.sigmoid(gate) * up


def gelu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As `silu_mul`, with GELU approximated by tanh."""
    gate, up = gate_up.chunk(2, -1)
    return gate * (1 + torch.tanh(sqrt(2 / pi) * (gate + 0.044715 * gate**3))) / 2 * up
