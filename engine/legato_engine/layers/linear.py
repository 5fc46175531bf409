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
    weight = torch.cat([checkpoint.tensor(f"{name}.weight").to(device, dtype) for name in names])
    present = [f"{name}.bias" in checkpoint.names() for name in names]
    if not any(present):
        return Linear(weight, None)
    biases = [_bias(checkpoint, name, dtype, device) for name in names]
    return Linear(weight, torch.cat(biases))


def _bias(checkpoint: Checkpoint, name: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if f"{name}.bias" in checkpoint.names():
        return checkpoint.tensor(f"{name}.bias").to(device, dtype)
    return torch.zeros(checkpoint.shape(f"{name}.weight")[0], dtype=dtype, device=device)
