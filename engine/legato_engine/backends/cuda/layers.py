"""Implements `layers.interface` by Triton's kernels, with linear layers by `linear`. Activations and the residual
stream are of one dtype; nothing is allocated in a step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from legato_engine.backends.cuda.float8 import Float8Memory
from legato_engine.backends.cuda.linear import LinearPart
from legato_engine.backends.cuda.low_rank import CudaLowRank
from legato_engine.backends.cuda.step import CudaStep
from legato_engine.backends.cuda.workspace import Buffer
from legato_engine.backends.kv_groups import of_layer
from legato_engine.kernels.gpu.attention import attend as attention
from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.float8 import Float8Rows
from legato_engine.kernels.gpu.rms_norm import add_rms_norm
from legato_engine.kernels.gpu.rope import norm_rotate_write
from legato_engine.kvcache.groups import LayerPlace
from legato_engine.layers.interface import AttentionShape
from legato_engine.layers.kv_factors import KVFactors


@dataclass(frozen=True, slots=True)
class CudaEmbedding:
    weight: torch.Tensor  # [vocab, hidden]
    multiplier: float  # of embeddings
    out: Buffer

    def __call__(self, step: CudaStep) -> torch.Tensor:
        rows = torch.index_select(self.weight, 0, step.tokens, out=self.out.take(len(step.tokens)))
        return rows.mul_(self.multiplier) if self.multiplier != 1 else rows


@dataclass(frozen=True, slots=True)
class CudaNorm:
    weight: torch.Tensor
    eps: float
    multiplier: float  # of x
    configuration: Configuration
    out: Buffer
    float8: Float8Memory | None  # None if no linear layer but the head follows

    def __call__(self, step: CudaStep, x: torch.Tensor | None, residual: torch.Tensor) -> torch.Tensor:
        out = self.out.take(len(residual))
        rounded = None if self.float8 is None else self.float8.given(out)
        add_rms_norm(x, residual, self.weight, self.eps, out, self.configuration, self.multiplier, rounded)
        return out


@dataclass(frozen=True, slots=True)
class CudaSum:
    def __call__(self, step: CudaStep, x: torch.Tensor | None, residual: torch.Tensor) -> torch.Tensor:
        return residual if x is None else residual.add_(x)


@dataclass(frozen=True, slots=True)
class CudaOutputNorm:
    weight: torch.Tensor
    eps: float
    configuration: Configuration

    def __call__(self, step: CudaStep, x: torch.Tensor) -> torch.Tensor:
        add_rms_norm(None, x, self.weight, self.eps, x, self.configuration)
        return x


@dataclass(frozen=True, slots=True)
class CudaLinear:
    parts: tuple[LinearPart, ...]  # in the order of outputs
    bias: torch.Tensor | None
    out: Buffer
    update: CudaLowRank | None = None  # None if adapters do not update it

    def __call__(self, step: CudaStep, x: torch.Tensor) -> torch.Tensor:
        out, first = self.out.take(len(x)), 0
        for part in self.parts:
            last = first + part.outputs
            part(x, None if self.bias is None else self.bias[first:last], out[:, first:last])
            first = last
        if step.adapted is not None and self.update is not None:
            self.update(x, out, step.adapted)
        return out


class AttentionConfigurations(NamedTuple):
    """Configurations of the kernels of a layer's attention."""

    rotation: Configuration
    decoding: Configuration
    prompts: Configuration


@dataclass(frozen=True, slots=True)
class CudaAttention:
    place: LayerPlace
    shape: AttentionShape
    angles: tuple[torch.Tensor, torch.Tensor]  # cos and sin, float32 [positions, pairs]
    kv: KVFactors[torch.Tensor] | None  # if the arena is in e4m3
    norms: tuple[torch.Tensor, torch.Tensor] | None  # weights for queries and keys, of each head
    whole_norms: tuple[CudaOutputNorm, CudaOutputNorm] | None  # of all heads together
    sinks: torch.Tensor | None  # float32 [heads]
    eps: float
    configurations: AttentionConfigurations
    out: Buffer

    def __call__(self, step: CudaStep, qkv: torch.Tensor) -> torch.Tensor:
        shape, group, layer = self.shape, self.place.group, of_layer(step.arena, self.place.place)
        rotation, decoding, prompts = self.configurations
        query_norm, key_norm = self.norms or (None, None)
        reading, writing = self.kv or (None, None)
        if self.whole_norms is not None:
            wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
            for norm, part in zip(self.whole_norms, (qkv[:, :wide], qkv[:, wide : wide + narrow]), strict=True):
                norm(step, part)
        norm_rotate_write(
            qkv, step.positions, step.slots[group], *self.angles, query_norm, key_norm, self.eps, shape.heads, layer,
            writing, rotation,
        )  # fmt: skip
        if step.planned != (shape.window,):
            attention.plan(step.starts, step.lengths, step.work, shape.window, decoding, prompts)
            step.planned = (shape.window,)
        out, split = self.out.take(len(qkv)), (len(qkv), shape.heads, shape.head_dim)
        attention.attend(
            qkv[:, : out.shape[1]].view(split), layer, step.starts, step.lengths, step.tables[group], step.work,
            shape.window, out.view(split), decoding, prompts, step.size.prompts, reading, self.sinks,
        )  # fmt: skip
        return out


Compute = Callable[[torch.Tensor, torch.Tensor, Configuration, Float8Rows | None], None]  # as `silu_mul`


@dataclass(frozen=True, slots=True)
class CudaActivation:
    compute: Compute
    configuration: Configuration
    out: Buffer
    float8: Float8Memory

    def __call__(self, step: CudaStep, gate_up: torch.Tensor) -> torch.Tensor:
        out = self.out.take(len(gate_up))
        self.compute(gate_up, out, self.configuration, self.float8.given(out))
        return out


@dataclass(frozen=True, slots=True)
class CudaHead:
    norm: CudaNorm
    weight: LinearPart
    multiplier: float  # of logits
    x: Buffer
    residual: Buffer
    products: Buffer
    out: Buffer  # float32

    def __call__(self, step: CudaStep, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        step.hidden = x, residual
        return self.logits(step, x, residual, step.sampled)

    def logits(self, step: CudaStep, x: torch.Tensor, residual: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of these tokens of a step, float32 [tokens, vocab]; at most as many as a step may have rows."""
        count = len(tokens)
        given = torch.index_select(x, 0, tokens, out=self.x.take(count))
        before = torch.index_select(residual, 0, tokens, out=self.residual.take(count))
        products = self.products.take(count)
        self.weight(self.norm(step, given, before), None, products)
        logits = self.out.take(count).copy_(products)
        return logits.mul_(self.multiplier) if self.multiplier != 1 else logits
