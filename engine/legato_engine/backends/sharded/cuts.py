"""The part of each tensor that a rank reads, determined by building the model from layers that only record it."""

from collections.abc import Sequence
from typing import Any

from legato_engine.backends.sharded.rank import Rank
from legato_engine.layers.experts import ExpertsShape
from legato_engine.layers.interface import AttentionShape
from legato_engine.layers.splits import ColumnParallel, RowParallel, Split
from legato_engine.models import registry
from legato_engine.models.config import ModelConfig
from legato_engine.weights.cut import Cut


def cuts(config: ModelConfig, rank: Rank) -> dict[str, Cut]:
    """The cuts of a model's projections and vectors by name, without `.weight` and `.bias`; others are read whole."""
    noted = _Noted(rank)
    registry.model_class(config)(config, noted)
    return noted.cuts


class _Noted:
    """Implements `Layers` without computation."""

    def __init__(self, rank: Rank) -> None:
        self.cuts: dict[str, Cut] = {}
        self._rank = rank

    def embedding(self, name: str, rows: int, width: int) -> Any:
        self.cuts[name] = Cut(outputs=(self._rank.rows(rows),))

    def linear(
        self, names: Sequence[str], inputs: int, outputs: Sequence[int], bias: bool = False, split: Split | None = None
    ) -> Any:
        if isinstance(split, RowParallel):
            for name in names:
                self.cuts[name] = Cut(inputs=self._rank.span(inputs))
        elif isinstance(split, ColumnParallel):
            for name, part in zip(names, split_by_name(split, len(names)), strict=True):
                self.cuts[name] = Cut(outputs=self._rank.spans(part))

    def attention(self, layer: int, shape: AttentionShape) -> Any:
        if shape.sinks is not None:
            self.cuts[shape.sinks] = Cut(outputs=(self._rank.span(shape.heads),))
        if shape.whole_norms:
            for name, heads in ((shape.query_norm, shape.heads), (shape.key_norm, shape.kv_heads)):
                if name is not None:
                    self.cuts[name] = Cut(outputs=(self._rank.span(heads * shape.head_dim, shape.head_dim),))

    def experts(self, shape: ExpertsShape) -> Any:
        for number in range(shape.routing.count):
            self._expert((*shape.gate_up(number), shape.down(number)), shape.hidden, shape.inner)
        if (shared := shape.shared) is not None:
            self._expert((shared.gate, shared.up, shared.down), shape.hidden, shared.inner)

    def _expert(self, names: tuple[str, str, str], hidden: int, inner: int) -> None:
        gate, up, down = names
        self.linear([gate, up], hidden, [inner, inner], split=ColumnParallel((inner, inner)))
        self.linear([down], inner, [hidden], split=RowParallel())

    def head(self, norm: str, weight: str, rows: int, width: int) -> Any:
        self.embedding(weight, rows, width)

    def norm(self, name: str, width: int) -> Any:
        """Is read whole."""

    def output_norm(self, name: str, width: int) -> Any:
        """Is read whole."""

    def sum(self, width: int) -> Any:
        """Has no weights."""

    def silu_mul(self, width: int) -> Any:
        """Has no weights."""

    def gelu_mul(self, width: int) -> Any:
        """Has no weights."""


def split_by_name(split: ColumnParallel, names: int) -> Sequence[ColumnParallel]:
    """The split of each projection of a layer: a part each, or all parts in one projection."""
    return [split] if names == 1 else [ColumnParallel((part,), split.unit) for part in split.parts]
