"""A rank of a worker, and its part of the sizes of a model."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from legato_engine.layers.splits import ColumnParallel
from legato_engine.models.config import ModelConfig

if TYPE_CHECKING:  # the tests for GPUs import this without the protocol
    from legato_engine.kvcache.layout import KVLayout

Span = tuple[int, int]  # the first number, and the one after the last


@dataclass(frozen=True, slots=True)
class Rank:
    """One of `count` processes that compute a model together."""

    index: int
    count: int

    @property
    def first(self) -> bool:
        return self.index == 0

    def span(self, size: int, unit: int = 1) -> Span:
        """The part of `size` numbers that this rank computes; `unit` of them stay together. With fewer units than
        ranks, neighbouring ranks have the same one. Either number must divide the other."""
        units = size // unit
        each = max(1, units // self.count)
        first = self.index * units // self.count
        return first * unit, (first + each) * unit

    def rows(self, size: int) -> Span:
        """The part of a vocabulary, of which the last rank may have fewer rows."""
        each = -(-size // self.count)
        return min(size, self.index * each), min(size, (self.index + 1) * each)

    def spans(self, split: ColumnParallel) -> tuple[Span, ...]:
        """The outputs that this rank computes, counted from the first of all parts."""
        spans, begin = [], 0
        for size in split.parts:
            first, last = self.span(size, split.unit)
            spans.append((begin + first, begin + last))
            begin += size
        return tuple(spans)

    def config(self, config: ModelConfig) -> ModelConfig:
        """The config of a model with this rank's sizes."""
        experts = config.experts
        if experts is not None:
            shared = None if experts.shared_inner is None else self._share(experts.shared_inner)
            experts = replace(experts, inner=self._share(experts.inner), shared_inner=shared)
        return replace(
            config,
            heads=self._share(config.heads),
            kv_heads=self._share(config.kv_heads),
            intermediate_size=self._share(config.intermediate_size),
            experts=experts,
        )

    def layout(self, layout: "KVLayout") -> "KVLayout":
        """The layout of this rank's part of blocks."""
        return replace(layout, kv_heads=self._share(layout.kv_heads))

    def kv_copies(self, kv_heads: int) -> int:
        """The number of ranks that compute the same KV head."""
        return max(1, self.count // kv_heads)

    def _share(self, size: int) -> int:
        return max(1, size // self.count)


ALONE = Rank(0, 1)
