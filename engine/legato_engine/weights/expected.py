"""The tensors that a model needs, determined by building it from layers that only record their weights."""

from collections.abc import Sequence
from typing import Any

from legato_engine.layers.interface import AttentionShape
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


class _Noted:
    """Implements `Layers` without computation."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.projections: dict[str, tuple[int, int]] = {}

    def embedding(self, name: str, rows: int, width: int) -> Any:
        self.shapes[f"{name}.weight"] = (rows, width)

    def norm(self, name: str, width: int) -> Any:
        self.shapes[f"{name}.weight"] = (width,)

    def linear(self, names: Sequence[str], inputs: int, outputs: Sequence[int], bias: bool = False) -> Any:
        for name, size in zip(names, outputs, strict=True):
            self.shapes[f"{name}.weight"] = (size, inputs)
            self.projections[name] = (size, inputs)
            if bias:
                self.shapes[f"{name}.bias"] = (size,)

    def attention(self, layer: int, shape: AttentionShape) -> Any:
        for name, heads in ((shape.query_norm, shape.heads), (shape.key_norm, shape.kv_heads)):
            if name is not None:
                self.norm(name, shape.head_dim * (heads if shape.whole_norms else 1))

    def silu_mul(self, width: int) -> Any:
        """Has no weights."""

    def gelu_mul(self, width: int) -> Any:
        """Has no weights."""

    def sum(self, width: int) -> Any:
        """Has no weights."""

    def output_norm(self, name: str, width: int) -> Any:
        self.norm(name, width)

    def head(self, norm: str, weight: str, rows: int, width: int) -> Any:
        self.norm(norm, width)
        self.embedding(weight, rows, width)
