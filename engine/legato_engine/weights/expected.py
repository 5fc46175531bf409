"""The tensors that a model needs, determined by building it from layers that only record their weights."""

from collections.abc import Sequence
from typing import Any

from legato_engine.layers.experts import ExpertsShape
from legato_engine.layers.interface import AttentionShape
from legato_engine.layers.splits import Split
from legato_engine.models import registry
from legato_engine.models.config import ModelConfig


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of a model with this config."""
    noted = _Noted()
    registry.model_class(config)(config, noted)
    return noted.shapes


def projections(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of the projections in a model's linear layers, by name; adapters may update these."""
    noted = _Noted()
    registry.model_class(config)(config, noted)
    return noted.projections


def routed_projections(config: ModelConfig) -> frozenset[str]:
    """Names of the projections of experts that a router chooses."""
    noted = _Noted()
    registry.model_class(config)(config, noted)
    return frozenset(noted.routed_projections)


def expert_projections(config: ModelConfig) -> frozenset[str]:
    """Names of the projections of experts, which adapters cannot update."""
    noted = _Noted()
    registry.model_class(config)(config, noted)
    return frozenset(noted.expert_projections)


class _Noted:
    """Implements `Layers` without computation."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.projections: dict[str, tuple[int, int]] = {}
        self.expert_projections: list[str] = []
        self.routed_projections: list[str] = []

    def embedding(self, name: str, rows: int, width: int) -> Any:
        self.shapes[f"{name}.weight"] = (rows, width)

    def norm(self, name: str, width: int) -> Any:
        self.shapes[f"{name}.weight"] = (width,)

    def linear(
        self, names: Sequence[str], inputs: int, outputs: Sequence[int], bias: bool = False, split: Split | None = None
    ) -> Any:
        for name, size in zip(names, outputs, strict=True):
            self._projection(name, size, inputs, bias)
            self.projections[name] = (size, inputs)

    def attention(self, layer: int, shape: AttentionShape) -> Any:
        for name, heads in ((shape.query_norm, shape.heads), (shape.key_norm, shape.kv_heads)):
            if name is not None:
                self.norm(name, shape.head_dim * (heads if shape.whole_norms else 1))
        if shape.sinks is not None:
            self.shapes[shape.sinks] = (shape.heads,)

    def silu_mul(self, width: int) -> Any:
        """Has no weights."""

    def gelu_mul(self, width: int) -> Any:
        """Has no weights."""

    def experts(self, shape: ExpertsShape) -> Any:
        names, hidden, routing = shape.names, shape.hidden, shape.routing
        self._projection(names.router, routing.count, hidden, shape.router_bias)
        if names.correction is not None:
            self.shapes[names.correction] = (routing.count,)
        for number in range(routing.count):
            routed = (*shape.gate_up(number), shape.down(number))
            self._expert(routed, hidden, shape.inner, shape.biases)
            self.routed_projections += routed
        if (shared := shape.shared) is not None:
            self._expert((shared.gate, shared.up, shared.down), hidden, shared.inner, False)
            if shared.weight is not None:
                self._projection(shared.weight, 1, hidden, False)

    def _expert(self, names: tuple[str, str, str], hidden: int, inner: int, biases: bool) -> None:
        gate, up, down = names
        for name, outputs, inputs in ((gate, inner, hidden), (up, inner, hidden), (down, hidden, inner)):
            self._projection(name, outputs, inputs, biases)
            self.expert_projections.append(name)

    def _projection(self, name: str, outputs: int, inputs: int, bias: bool) -> None:
        self.shapes[f"{name}.weight"] = (outputs, inputs)
        if bias:
            self.shapes[f"{name}.bias"] = (outputs,)

    def sum(self, width: int) -> Any:
        """Has no weights."""

    def output_norm(self, name: str, width: int) -> Any:
        self.norm(name, width)

    def head(self, norm: str, weight: str, rows: int, width: int) -> Any:
        self.norm(norm, width)
        self.embedding(weight, rows, width)
