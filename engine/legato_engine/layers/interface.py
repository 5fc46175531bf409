"""The layers of a decoder-only transformer that a model requests from a backend.

A model is written once with these; a backend (`legato_engine.backends`) decides the packing of weights, the operators
and the type of activations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from legato_engine.layers.experts import ExpertsShape
from legato_engine.layers.rotation import Rotation
from legato_engine.layers.splits import Split

Hidden = Any  # a backend's own array of activations, a row for each token of the step; opaque to models
Step = Any  # a backend's state of the current step: inputs, KV arena, attention metadata


class Embedding(Protocol):
    def __call__(self, step: Step) -> Hidden:
        """The residual stream, [tokens, hidden]."""


class Norm(Protocol):
    def __call__(self, step: Step, x: Hidden | None, residual: Hidden) -> Hidden:
        """Adds `x`, if given, times the model's `residual_multiplier`, to the residual stream in place. Returns the
        RMSNorm of the sum."""


class Sum(Protocol):
    def __call__(self, step: Step, x: Hidden | None, residual: Hidden) -> Hidden:
        """Adds `x`, if given, to the residual stream in place. Returns the sum as input of a linear layer."""


class OutputNorm(Protocol):
    def __call__(self, step: Step, x: Hidden) -> Hidden:
        """The RMSNorm of a linear layer's output, in place."""


class Linear(Protocol):
    def __call__(self, step: Step, x: Hidden) -> Hidden:
        """[tokens, in] → [tokens, out], valid until the next call of a linear layer of the same width."""


class Attention(Protocol):
    def __call__(self, step: Step, qkv: Hidden) -> Hidden:
        """Rotates queries and keys, writes keys and values to the arena, and attends.

        qkv [tokens, (heads + 2 · kv_heads) · head_dim] → [tokens, heads · head_dim].
        """


class Activation(Protocol):
    def __call__(self, step: Step, gate_up: Hidden) -> Hidden:
        """[tokens, 2 · inner], gate first → [tokens, inner]."""


class Experts(Protocol):
    def __call__(self, step: Step, x: Hidden) -> Hidden:
        """Computes each token by the experts that the router chooses for it, [tokens, hidden] → [tokens, hidden].

        Router logits are float32. A token whose logits contain NaN gets NaN, and others are not affected."""


class Head(Protocol):
    def __call__(self, step: Step, x: Hidden, residual: Hidden) -> torch.Tensor:
        """Final norm and output matrix, for tokens that sample: float32 logits [sampled, vocab]."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The parameters of a layer's attention that differ between models."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None  # positions that a position attends to, including itself; None: all
    query_norm: str | None = None  # weights of RMSNorms before the rotation
    key_norm: str | None = None
    whole_norms: bool = False  # one norm over all heads together instead of one over each head
    rotation: Rotation | None = None  # None: queries and keys are not rotated
    sinks: str | None = None  # full name of a tensor [heads]: scores that only the sum of weights includes


class Layers(Protocol):
    """Creates the layers of one model from its weights. Names are Hugging Face's, without `.weight` and `.bias`."""

    def embedding(self, name: str, rows: int, width: int) -> Embedding: ...
    def norm(self, name: str, width: int) -> Norm: ...
    def sum(self, width: int) -> Sum: ...
    def output_norm(self, name: str, width: int) -> OutputNorm: ...
    def linear(
        self, names: Sequence[str], inputs: int, outputs: Sequence[int], bias: bool = False, split: Split | None = None
    ) -> Linear:
        """Fused projections of one input; their outputs are concatenated. `split` is for several ranks; None: each rank
        computes all of it."""

    def attention(self, layer: int, shape: AttentionShape) -> Attention: ...
    def silu_mul(self, width: int) -> Activation: ...
    def gelu_mul(self, width: int) -> Activation: ...
    def experts(self, shape: ExpertsShape) -> Experts: ...
    def head(self, norm: str, weight: str, rows: int, width: int) -> Head: ...
