"""Number formats of a compute path: its linear layers, its KV, and the attention that reads it.

Sums, softmax and the residual stream are always float32.
"""

from collections.abc import Sequence
from typing import Protocol

import numba
import numpy as np
import torch

from legato_engine.backends.cpu import attention_work, linear_bf16, linear_float32
from legato_engine.backends.cpu.linear_float32 import Scratch
from legato_engine.backends.cpu.step import Projection
from legato_engine.backends.cpu.workspace import Array
from legato_engine.kernels.cpu.attention import bf16 as bf16_attention
from legato_engine.kernels.cpu.attention import float32 as float32_attention
from legato_engine.kernels.cpu.linear.bf16_tiles import SHAPES
from legato_engine.kernels.paths import AttentionProduct, Path
from legato_engine.layers.inputs import StepInputs
from legato_engine.weights.checkpoint import Checkpoint


class TokenTable(Projection, Protocol):
    """An embedding or output matrix, or both in one."""

    outputs: int  # rows of the weight, including padding

    def rows(self, indexes: Array) -> Array: ...


class Numerics(Protocol):
    inputs: type[np.generic]  # of linear layers: float32, or bfloat16 as uint16
    path: Path

    def linear(self, checkpoint: Checkpoint, names: Sequence[str], bias: bool) -> Projection: ...
    def table(self, checkpoint: Checkpoint, name: str) -> TokenTable: ...
    def arena_view(self, arena: torch.Tensor) -> Array:
        """The arena as its kernels take it."""

    def work(self, inputs: StepInputs, shared: int) -> Array:
        """The work list of a step for attention; `shared` heads use one KV head."""

    def attend(
        self, qkv: Array, work: Array, tables: Array, window: int, held: Array, layer: int, factors: Array,
        sinks: Array, out: Array,
    ) -> None:  # fmt: skip
        """qkv float32 [tokens, heads + 2 · kv_heads, dim] → out `inputs` [tokens, heads, dim]; `factors` are
        `KVFactors.reading`, `sinks` float32 [heads] or [0]."""


class Float32:
    """Float32 weights, or the file's codes. Depending on the path, activations of linear layers are rounded to 8
    bits, and queries and weights of attention to bfloat16 if the arena holds it.
    """

    inputs: type[np.generic] = np.float32

    def __init__(self, path: Path) -> None:
        self.path = path
        self._scratch = Scratch()

    def linear(self, checkpoint: Checkpoint, names: Sequence[str], bias: bool) -> Projection:
        return linear_float32.load(checkpoint, names, bias, self.path, self._scratch)

    def table(self, checkpoint: Checkpoint, name: str) -> TokenTable:
        return linear_float32.table(checkpoint, name, self.path, self._scratch)

    def arena_view(self, arena: torch.Tensor) -> Array:
        if arena.dtype == torch.float8_e4m3fn:
            return arena.view(torch.uint8).numpy()
        return _bits(arena) if arena.dtype == torch.bfloat16 else arena.numpy()

    def work(self, inputs: StepInputs, shared: int) -> Array:
        return attention_work.parts(inputs, shared)

    def attend(
        self, qkv: Array, work: Array, tables: Array, window: int, held: Array, layer: int, factors: Array,
        sinks: Array, out: Array,
    ) -> None:  # fmt: skip
        kv, threads = self.path.kv_tag(held.dtype), numba.get_num_threads()
        float32_attention.attention(kv, qkv, work, tables, window, held, layer, factors, sinks, threads, out)


class Tiles:
    """Weights, KV and the inputs of linear layers in bfloat16, for AMX; the file's codes for one or two rows."""

    inputs: type[np.generic] = np.uint16

    def __init__(self, path: Path) -> None:
        self.path = path

    def linear(self, checkpoint: Checkpoint, names: Sequence[str], bias: bool) -> Projection:
        return linear_bf16.load(checkpoint, names, bias, self.path)

    def table(self, checkpoint: Checkpoint, name: str) -> TokenTable:
        return linear_bf16.table(checkpoint, name, self.path)

    def arena_view(self, arena: torch.Tensor) -> Array:
        return _bits(arena)

    def work(self, inputs: StepInputs, shared: int) -> Array:
        return attention_work.tiles(inputs, shared)

    def attend(
        self, qkv: Array, work: Array, tables: Array, window: int, held: Array, layer: int, factors: Array,
        sinks: Array, out: Array,
    ) -> None:  # fmt: skip
        threads = numba.get_num_threads()
        bf16_attention.attention(qkv, work, tables, window, SHAPES, held, layer, sinks, threads, out)


def make(path: Path) -> Numerics:
    return Tiles(path) if path.attention is AttentionProduct.TILES else Float32(path)


def _bits(arena: torch.Tensor) -> Array:
    """bfloat16 as uint16, because numpy has no bfloat16."""
    return arena.view(torch.int16).numpy().view(np.uint16)
