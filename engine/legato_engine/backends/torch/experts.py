"""Mixtures of experts with torch's operators."""

from dataclasses import dataclass

import torch

from legato_engine.backends import projections
from legato_engine.backends.torch.step import TorchStep
from legato_engine.kernels.routing import Gating
from legato_engine.kernels.torch.experts import gated, mixture, route
from legato_engine.layers.experts import ExpertsShape
from legato_engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class TorchExpert:
    """The weights of one expert, [2 · inner, hidden] and [hidden, inner], and its biases, if it has any."""

    gate_up: torch.Tensor
    down: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor, gating: Gating) -> torch.Tensor:
        linear = torch.nn.functional.linear
        inner = gated(linear(x, self.gate_up, self.gate_up_bias), gating)
        return linear(inner, self.down, self.down_bias)

    @property
    def nbytes(self) -> int:
        return self.gate_up.nbytes + self.down.nbytes


@dataclass(frozen=True, slots=True)
class TorchExperts:
    shape: ExpertsShape
    router: projections.Router
    experts: tuple[TorchExpert, ...]
    shared: TorchExpert | None

    def __call__(self, step: TorchStep, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        chosen, weights = route(self.router.logits(wide), self.router.correction, self.shape.routing)
        sums = mixture(x, chosen, weights, self._compute)
        if self.shared is not None:
            sums += self.shared(x, self.shape.gating).float() * self.router.shared_weights(wide)
        return sums.to(x.dtype)

    def _compute(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        return self.experts[expert](x, self.shape.gating)

    @property
    def nbytes(self) -> int:
        shared = 0 if self.shared is None else self.shared.nbytes
        return self.router.nbytes + sum(expert.nbytes for expert in self.experts) + shared


def load(checkpoint: Checkpoint, shape: ExpertsShape, dtype: torch.dtype, device: torch.device) -> TorchExperts:
    def expert(gate_up: tuple[str, str], down: str, biases: bool) -> TorchExpert:
        def bias(*names: str) -> torch.Tensor | None:
            return projections.biases(checkpoint, names).to(device, dtype) if biases else None

        def weight(*names: str) -> torch.Tensor:
            return projections.weights(checkpoint, names, dtype, device)

        return TorchExpert(weight(*gate_up), weight(down), bias(*gate_up), bias(down))

    experts = [expert(shape.gate_up(i), shape.down(i), shape.biases) for i in range(shape.routing.count)]
    one = shape.shared
    shared = None if one is None else expert((one.gate, one.up), one.down, biases=False)
    return TorchExperts(shape, projections.router(checkpoint, shape, device), tuple(experts), shared)
