"""Weights and biases of several projections of one input, fused into one matrix."""

from collections.abc import Sequence

import torch

from legato_engine.weights.checkpoint import Checkpoint


def weights(
    checkpoint: Checkpoint, names: Sequence[str], dtype: torch.dtype, device: torch.device | None = None
) -> torch.Tensor:
    """Weights of the projections `names` (without `.weight`), [out, in], outputs in this order."""
    return torch.cat([checkpoint.tensor(f"{name}.weight").to(device, dtype) for name in names])


def padded(weight: torch.Tensor, multiple: int = 32) -> torch.Tensor:
    """Rows of zeros after those of `weight`, until there are a multiple of that many."""
    missing = -weight.shape[0] % multiple
    return torch.nn.functional.pad(weight, (0, 0, 0, missing)) if missing else weight


def biases(checkpoint: Checkpoint, names: Sequence[str]) -> torch.Tensor:
    """Biases of the projections `names`, float32 [out]."""
    return torch.cat([checkpoint.vector(f"{name}.bias") for name in names])
