"""A rank's part of a model: layers of another backend with this rank's sizes, whose results are added over ranks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from legato_engine.backends import projections
from legato_engine.backends.interface import Backend, Forward
from legato_engine.backends.sharded.checkpoint import ShardedCheckpoint
from legato_engine.backends.sharded.collectives import Collectives, WholeNorm
from legato_engine.backends.sharded.cuts import split_by_name
from legato_engine.backends.sharded.rank import Rank, Span
from legato_engine.layers.experts import ExpertsShape
from legato_engine.layers.inputs import Ints, StepInputs, WindowInputs
from legato_engine.layers.interface import (
    Activation,
    Attention,
    AttentionShape,
    Embedding,
    Experts,
    Head,
    Hidden,
    Linear,
    Norm,
    OutputNorm,
    Step,
    Sum,
)
from legato_engine.layers.low_rank import LowRankAdapter, Pair
from legato_engine.layers.splits import ColumnParallel, RowParallel, Split
from legato_engine.weights.cut import Cut


@dataclass(frozen=True, slots=True)
class OwnEmbedding:
    """Embeddings of the rows of the table that this rank has; other ranks add the others."""

    rows: Embedding
    collectives: Collectives
    own: Span

    def __call__(self, step: Step) -> Hidden:
        return self.collectives.embed(step, self.rows, self.own)


@dataclass(frozen=True, slots=True)
class Summed:
    """A layer whose results are added over ranks."""

    layer: Callable[[Step, Hidden], Hidden]
    collectives: Collectives

    def __call__(self, step: Step, x: Hidden) -> Hidden:
        return self.collectives.sum(step, self.layer(step, x))


@dataclass(frozen=True, slots=True)
class NormedAttention:
    """Attention after norms over the queries, and the keys, of all ranks."""

    attention: Attention
    collectives: Collectives
    norms: tuple[WholeNorm, ...]
    eps: float

    def __call__(self, step: Step, qkv: Hidden) -> Hidden:
        self.collectives.norm(step, qkv, self.norms, self.eps)
        return self.attention(step, qkv)


class ShardedBackend:
    """Implements `Backend`. All ranks are called with the same steps, in the same order.

    In an arena of all ranks, a rank's KV heads are one contiguous part of each block; ranks with the same head write
    the same numbers to the same place."""

    def __init__(
        self, backend: Backend, checkpoint: ShardedCheckpoint, rank: Rank, collectives: Collectives, parts: int = 1
    ) -> None:
        """`parts` are the parts of a block in an arena of all ranks; 1: this rank has an arena of its own."""
        self._backend = backend
        self._checkpoint = checkpoint
        self._rank = rank
        self._collectives = collectives
        self._parts = parts
        self._part = rank.index * parts // rank.count
        self._vocab = (0, 0)
        self._widths: list[int] = []

    @property
    def nbytes(self) -> int:
        return self._backend.nbytes

    @property
    def further_tokens(self) -> tuple[int, ...]:
        return self._backend.further_tokens

    def adapter(self, pairs: Mapping[str, Pair]) -> LowRankAdapter:
        return self._backend.adapter({name: self._share(name, pair) for name, pair in pairs.items()})

    def begin(self, inputs: StepInputs, arena: torch.Tensor) -> Step:
        return self._backend.begin(self._own_inputs(inputs, arena.shape[4]), self._own_arena(arena))

    def logits(self, forward: Forward, inputs: StepInputs, arena: torch.Tensor) -> torch.Tensor:
        """Returns all columns to the first rank."""
        own = self._own_inputs(inputs, arena.shape[4])
        return self._gathered(self._backend.logits(forward, own, self._own_arena(arena)))

    def capture(self, forward: Forward, arena: torch.Tensor) -> None:
        self._backend.capture(forward, self._own_arena(arena))

    def capture_missing(self, forward: Forward, arena: torch.Tensor) -> None:
        self._backend.capture_missing(forward, self._own_arena(arena))

    def logits_of(self, tokens: Ints) -> torch.Tensor:
        return self._gathered(self._backend.logits_of(tokens))

    def embedding(self, name: str, rows: int, width: int) -> Embedding:
        first, last = self._vocab = self._rank.rows(rows)
        return OwnEmbedding(self._backend.embedding(name, last - first, width), self._collectives, self._vocab)

    def norm(self, name: str, width: int) -> Norm:
        return self._backend.norm(name, width)

    def sum(self, width: int) -> Sum:
        return self._backend.sum(width)

    def output_norm(self, name: str, width: int) -> OutputNorm:
        return self._backend.output_norm(name, width)

    def linear(
        self, names: Sequence[str], inputs: int, outputs: Sequence[int], bias: bool = False, split: Split | None = None
    ) -> Linear:
        if isinstance(split, RowParallel):
            first, last = self._rank.span(inputs)
            return Summed(self._backend.linear(names, last - first, outputs, bias), self._collectives)
        if isinstance(split, ColumnParallel):
            cuts = [Cut(outputs=self._rank.spans(each)) for each in split_by_name(split, len(names))]
            outputs = [cut.shape((size,))[0] for cut, size in zip(cuts, outputs, strict=True)]
        return self._backend.linear(names, inputs, outputs, bias)

    def attention(self, layer: int, shape: AttentionShape) -> Attention:
        config = self._checkpoint.config
        own = replace(shape, heads=config.heads, kv_heads=config.kv_heads)
        if not shape.whole_norms or shape.query_norm is None or shape.key_norm is None:
            return self._backend.attention(layer, own)
        wide, narrow = own.heads * shape.head_dim, own.kv_heads * shape.head_dim
        copies = self._rank.kv_copies(shape.kv_heads)
        queries, keys = (projections.norm(self._checkpoint, name) for name in (shape.query_norm, shape.key_norm))
        norms = (
            WholeNorm(slice(0, wide), queries, shape.heads * shape.head_dim, 1),
            WholeNorm(slice(wide, wide + narrow), keys, shape.kv_heads * shape.head_dim, copies),
        )
        plain = replace(own, query_norm=None, key_norm=None, whole_norms=False)
        attention = self._backend.attention(layer, plain)
        return NormedAttention(attention, self._collectives, norms, config.rms_norm_eps)

    def silu_mul(self, width: int) -> Activation:
        return self._backend.silu_mul(width // self._rank.count)

    def gelu_mul(self, width: int) -> Activation:
        return self._backend.gelu_mul(width // self._rank.count)

    def experts(self, shape: ExpertsShape) -> Experts:
        count, shared = self._rank.count, shape.shared
        if shared is not None:
            shared = replace(shared, inner=shared.inner // count)
        own = replace(shape, inner=shape.inner // count, shared=shared)
        return Summed(self._backend.experts(own), self._collectives)

    def head(self, norm: str, weight: str, rows: int, width: int) -> Head:
        ranks = [Rank(index, self._rank.count) for index in range(self._rank.count)]
        self._widths = [last - first for first, last in (rank.rows(rows) for rank in ranks)]
        return self._backend.head(norm, weight, self._widths[self._rank.index], width)

    def _gathered(self, logits: torch.Tensor) -> torch.Tensor:
        return self._collectives.gather(logits, self._widths) if len(logits) else logits.new_empty(0, sum(self._widths))

    def _share(self, name: str, pair: Pair) -> Pair:
        """This rank's part of an adapter's matrices for a projection."""
        cut = self._checkpoint.cut(name)
        return Pair(replace(cut, outputs=None).of(pair.a), replace(cut, inputs=None).of(pair.b))

    def _own_inputs(self, inputs: StepInputs, block_size: int) -> StepInputs:
        """Tokens as rows of this rank's table, and blocks as its parts of the arena's."""

        def tables(blocks: Ints) -> Ints:
            return blocks * self._parts + self._part

        def slots(places: Ints) -> Ints:
            blocks, within = np.divmod(places, block_size)
            own: Ints = tables(blocks) * block_size + within
            return own

        own = self._collectives.own_tokens(inputs, self._vocab)
        if self._parts == 1:
            return own
        windows = [WindowInputs(slots(each.slots), tables(each.tables)) for each in own.windows]
        return replace(own, slots=slots(own.slots), tables=tables(own.tables), windows=tuple(windows))

    def _own_arena(self, arena: torch.Tensor) -> torch.Tensor:
        """The arena as blocks of one part each."""
        blocks, kv_heads = arena.shape[:2]
        return arena.view(blocks * self._parts, kv_heads // self._parts, *arena.shape[2:])
