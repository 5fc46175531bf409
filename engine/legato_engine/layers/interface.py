"""The layers of a decoder-only transformer, as a model asks a backend for them.

A model is written once against these; a backend (`legato_engine.backends`) decides how weights are packed, which
operators compute, and what an array of activations is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Hidden = Any  # a backend's own array of activations, a row for each token of the step: models only hand it on
Step = Any  # what a backend keeps of the step that is computed: inputs, KV arena, attention metadata


class Embedding(Protocol):
    def __call__(self, step: Step) -> Hidden:
        """The residual stream, [tokens, hidden]."""


class Norm(Protocol):
    def __call__(self, step: Step, x: Hidden | None, residual: Hidden) -> Hidden:
        """Adds `x`, if there is one, to the residual stream in place; the RMSNorm of that sum."""


class Linear(Protocol):
    def __call__(self, step: Step, x: Hidden) -> Hidden:
        """[tokens, in] → [tokens, out], valid until another linear layer of that width is called."""


class Attention(Protocol):
    def __call__(self, step: Step, qkv: Hidden) -> Hidden:
        """Rotates queries and keys, writes keys and values to the arena, and attends.

        qkv [tokens, (heads + 2 · kv_heads) · head_dim] → [tokens, heads · head_dim].
        """


class Activation(Protocol):
    def __call__(self, step: Step, gate_up: Hidden) -> Hidden:
        """[tokens, 2 · inner], gate first → [tokens, inner]."""


class Head(Protocol):
    def __call__(self, step: Step, x: Hidden, residual: Hidden) -> torch.Tensor:
        """Final norm and output matrix, for tokens that sample: float32 logits [sampled, vocab]."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What attention of one layer differs in between models."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None  # a position sees itself and this many less one before it
    query_norm: str | None = None  # weights of RMSNorms over each head, before the rotation
    key_norm: str | None = None


class Layers(Protocol):
    """Makes the layers of one model from its weights. Names are Hugging Face's, without `.weight` and `.bias`."""

    def embedding(self, name: str, rows: int, width: int) -> Embedding: ...
    def norm(self, name: str, width: int) -> Norm: ...
    def linear(self, names: Sequence[str], inputs: int, outputs: Sequence[int], bias: bool = False) -> Linear:
        """Projections of one input, fused: their outputs one after another."""

    def attention(self, layer: int, shape: AttentionShape) -> Attention: ...
    def silu_mul(self, width: int) -> Activation: ...
    def head(self, norm: str, weight: str, rows: int, width: int) -> Head: ...
