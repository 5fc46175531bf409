"""Linear layers, several projections of one input fused into one matrix."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from legato_engine.models.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Linear:
    """weight [out, in], bias [out] or none, in the dtype that is computed with."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, in] → [rows, out]."""
        return torch.nn.functional.linear(x, self.weight, self.bias)


def load(checkpoint: Checkpoint, names: Sequence[str], dtype: torch.dtype, device: torch.device) -> Linear:
    """The projections `names` (without `.weight`) of one input, outputs in this order."""
    found = biases(checkpoint, names)
    return Linear(weights(checkpoint, names, dtype, device), None if found is None else found.to(device, dtype))


def weights(
    checkpoint: Checkpoint, names: Sequence[str], dtype: torch.dtype, device: torch.device | None = None
) -> torch.Tensor:
    """Weights of the projections `names`, [out, in]."""
    return torch.cat([checkpoint.tensor(f"{name}.weight").to(device, dtype) for name in names])


def biases(checkpoint: Checkpoint, names: Sequence[str]) -> torch.Tensor | None:
    """Biases of the projections `names`, float32 [out]: zeros for one that has none, and nothing where none has any."""
    if not any(f"{name}.bias" in checkpoint.names() for name in names):
        return None
    return torch.cat([_bias(checkpoint, name) for name in names])


def _bias(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    if f"{name}.bias" in checkpoint.names():
        return checkpoint.vector(f"{name}.bias")
    return torch.zeros(checkpoint.shape(f"{name}.weight")[0])
