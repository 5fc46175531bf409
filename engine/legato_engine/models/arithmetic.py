"""In which numbers `llama_compiled` computes: how it holds linear layers and KV, and which attention reads that KV.

Sums, softmax and the residual stream are float32 in all of them.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from legato_engine.kernels.attention import cpu_bf16, cpu_float32
from legato_engine.kernels.linear.tiles import SHAPES
from legato_engine.layers import linear_bf16, linear_float32
from legato_engine.models.checkpoint import Checkpoint
from legato_engine.models.config import ModelConfig
from legato_engine.step_inputs import Paged

Array = np.ndarray[Any, Any]


class Projection(Protocol):
    """Computes x [room, in] → out [room, out] for the first `rows`; `nbytes` is the memory of its weights."""

    def __call__(self, x: Array, rows: int, out: Array) -> None: ...
    @property
    def nbytes(self) -> int: ...


class Table(Projection, Protocol):
    """A linear layer whose weight is an embedding as well."""

    def rows(self, indexes: Array) -> Array: ...


class Arithmetic(Protocol):
    inputs: type[np.generic]  # what linear layers take: float32, or bfloat16 as uint16

    def linear(self, checkpoint: Checkpoint, names: Sequence[str]) -> Projection: ...
    def table(self, checkpoint: Checkpoint, name: str) -> Table: ...
    def held(self, arena: torch.Tensor) -> Array:
        """The arena as its kernels take it."""

    def attend(self, qkv: Array, paged: Paged, window: int, held: Array, layer: int, out: Array) -> None:
        """qkv float32 [tokens, heads + 2 · kv_heads, dim] → out `inputs` [tokens, heads, dim]."""


class Float32:
    """Float32 throughout. `codes` keeps beside it the file's 4-bit and 8-bit codes, for steps of few rows: less memory
    is read, and the numbers are still those of float32.
    """

    inputs: type[np.generic] = np.float32

    def __init__(self, codes: bool) -> None:
        self._codes = codes

    @staticmethod
    def fits(config: ModelConfig, block_size: int) -> bool:
        """Whether all sizes are multiples of those that the kernels count in."""
        return block_size % 4 == 0 and all(size % 32 == 0 for size in _sizes(config))

    def linear(self, checkpoint: Checkpoint, names: Sequence[str]) -> Projection:
        return linear_float32.load(checkpoint, names, self._codes)

    def table(self, checkpoint: Checkpoint, name: str) -> Table:
        return linear_float32.table(checkpoint, name, self._codes)

    def held(self, arena: torch.Tensor) -> Array:
        return arena.numpy()

    def attend(self, qkv: Array, paged: Paged, window: int, held: Array, layer: int, out: Array) -> None:
        cpu_float32.attention(qkv, paged.work, paged.tables, window, held, layer, out)


class Tiles:
    """Weights, KV and the inputs of linear layers in bfloat16, for AMX; the file's codes for one or two rows."""

    inputs: type[np.generic] = np.uint16

    @staticmethod
    def fits(config: ModelConfig, block_size: int) -> bool:
        """Whether all sizes are multiples of those of tiles."""
        return block_size % 16 == 0 and all(size % 32 == 0 for size in _sizes(config))

    def linear(self, checkpoint: Checkpoint, names: Sequence[str]) -> Projection:
        return linear_bf16.load(checkpoint, names)

    def table(self, checkpoint: Checkpoint, name: str) -> Table:
        return linear_bf16.table(checkpoint, name)

    def held(self, arena: torch.Tensor) -> Array:
        return arena.view(torch.int16).numpy().view(np.uint16)

    def attend(self, qkv: Array, paged: Paged, window: int, held: Array, layer: int, out: Array) -> None:
        cpu_bf16.attention(qkv, paged.work, paged.tables, window, SHAPES, held, layer, out)


def _sizes(config: ModelConfig) -> tuple[int, ...]:
    heads = config.head_dim * config.heads
    fused = heads + 2 * config.head_dim * config.kv_heads
    return config.hidden_size, config.intermediate_size, heads, fused, config.head_dim, config.vocab_size
