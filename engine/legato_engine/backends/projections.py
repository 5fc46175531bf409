"""Weights and biases of several projections of one input, fused into one matrix."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from legato_engine.layers.experts import ExpertsShape
from legato_engine.weights.checkpoint import Checkpoint


def weights(
    checkpoint: Checkpoint, names: Sequence[str], dtype: torch.dtype, device: torch.device | None = None
) -> torch.Tensor:
    """Weights of the projections `names` (without `.weight`), [out, in], outputs in this order."""
    shapes = [checkpoint.shape(f"{name}.weight") for name in names]
    fused = torch.empty(sum(outputs for outputs, _ in shapes), shapes[0][1], dtype=dtype, device=device)
    first = 0
    for name, (outputs, _) in zip(names, shapes, strict=True):
        checkpoint.read(f"{name}.weight", fused[first : first + outputs])
        first += outputs
    return fused


@dataclass(frozen=True, slots=True)
class Router:
    """The weights that choose a token's experts, float32."""

    weight: torch.Tensor  # [count, hidden]
    bias: torch.Tensor | None  # [count]
    correction: torch.Tensor | None  # [count], of scores
    shared: torch.Tensor | None  # [1, hidden], of the shared expert's weight

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """x float32 [tokens, hidden] → [tokens, count]."""
        return torch.nn.functional.linear(x, self.weight, self.bias)

    def shared_weights(self, x: torch.Tensor) -> torch.Tensor | float:
        """The shared expert's weight for each row of x, float32 [tokens, 1]; 1 if it counts fully."""
        return 1.0 if self.shared is None else torch.nn.functional.linear(x, self.shared).sigmoid()

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


def router(checkpoint: Checkpoint, shape: ExpertsShape, device: torch.device | None = None) -> Router:
    """The router of a mixture of experts; a quantized one is dequantized."""

    def read(name: str | None) -> torch.Tensor | None:
        return None if name is None else checkpoint.vector(name).to(device)

    names, shared = shape.names, shape.shared
    weight = checkpoint.vector(f"{names.router}.weight").to(device)
    bias = read(f"{names.router}.bias" if shape.router_bias else None)
    gate = read(f"{shared.weight}.weight" if shared and shared.weight else None)
    return Router(weight, bias, read(names.correction), gate)


def padded(weight: torch.Tensor, multiple: int = 32) -> torch.Tensor:
    """`weight` with rows of zeros appended, up to a multiple of `multiple` rows."""
    missing = -weight.shape[0] % multiple
    return torch.nn.functional.pad(weight, (0, 0, 0, missing)) if missing else weight


def biases(checkpoint: Checkpoint, names: Sequence[str]) -> torch.Tensor:
    """Biases of the projections `names`, float32 [out]."""
    return torch.cat([checkpoint.vector(f"{name}.bias") for name in names])


def embedding_multiplier(checkpoint: Checkpoint, dtype: torch.dtype) -> float:
    """The factor of embeddings, rounded to their dtype, as when Gemma was trained."""
    return float(torch.tensor(checkpoint.config.embedding_multiplier, dtype=dtype))


def norm(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """The weight of the RMSNorm `name`, float32 [width], with the offset that the model adds."""
    weight = checkpoint.vector(f"{name}.weight")
    offset = checkpoint.config.norm_offset
    return weight + offset if offset else weight
