"""In which numbers the kernels compute: how linear layers and KV are held, and which attention reads that KV.

Sums, softmax and the residual stream are float32 in all of them.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import numba
import numpy as np
import torch

from legato_engine.backends.cpu import attention_work, linear_bf16, linear_float32
from legato_engine.backends.cpu.linear_float32 import Scratch
from legato_engine.backends.cpu.step import Projection
from legato_engine.backends.cpu.workspace import Array
from legato_engine.kernels.attention import numba_bf16, numba_float32
from legato_engine.kernels.linear import numba_int8_kinds
from legato_engine.kernels.linear.numba_tiles import SHAPES
from legato_engine.layers.inputs import Ints, StepInputs
from legato_engine.models.config import ModelConfig
from legato_engine.weights.checkpoint import Checkpoint

_PRODUCTS: dict[str, np.generic] = {
    "int8": numba_int8_kinds.VNNI,
    "int8-bf16": numba_int8_kinds.VNNI,
    "int8-avx2": numba_int8_kinds.AVX2,
}


class Table(Projection, Protocol):
    """An embedding or output matrix, or both in one."""

    outputs: int  # rows of the weight, rounded up to what the kernels count in

    def rows(self, indexes: Array) -> Array: ...


class Numerics(Protocol):
    inputs: type[np.generic]  # what linear layers take: float32, or bfloat16 as uint16
    products: np.generic | None  # of bytes, one of `numba_int8_kinds`: steps of few rows are then a `Program`

    def linear(self, checkpoint: Checkpoint, names: Sequence[str], bias: bool) -> Projection: ...
    def table(self, checkpoint: Checkpoint, name: str) -> Table: ...
    def held(self, arena: torch.Tensor) -> Array:
        """The arena as its kernels take it."""

    def work(self, inputs: StepInputs, shared: int) -> Ints:
        """What attention has to do in a step; `shared` heads use one KV head."""

    def attend(self, qkv: Array, work: Array, tables: Array, window: int, held: Array, layer: int, out: Array) -> None:
        """qkv float32 [tokens, heads + 2 · kv_heads, dim] → out `inputs` [tokens, heads, dim]."""


class Float32:
    """Float32 throughout, but for KV where the arena is bfloat16. With the form `codes`, from the file's 4-bit and
    8-bit codes where there are any: less memory is taken and read, and the numbers are still those of float32. With
    `int8`, what those are multiplied with is rounded to 8 bits; with `int8-avx2`, only what 4-bit ones are. With
    `int8-bf16`, so is what keys and values are multiplied with, to bfloat16, where the arena is.
    """

    inputs: type[np.generic] = np.float32

    def __init__(self, form: Literal["float32", "codes", "int8", "int8-bf16", "int8-avx2"]) -> None:
        self._pairs = form == "int8-bf16"
        self._from_codes = form != "float32"
        self.products = _PRODUCTS.get(form)
        self._scratch = Scratch()

    @staticmethod
    def misfit(config: ModelConfig, block_size: int) -> str | None:
        """Which size is no multiple of what the kernels count in."""
        return _misfit(config, block_size, 4)

    def linear(self, checkpoint: Checkpoint, names: Sequence[str], bias: bool) -> Projection:
        return linear_float32.load(checkpoint, names, bias, self._from_codes, self.products, self._scratch)

    def table(self, checkpoint: Checkpoint, name: str) -> Table:
        return linear_float32.table(checkpoint, name, self._from_codes, self.products, self._scratch)

    def held(self, arena: torch.Tensor) -> Array:
        if arena.dtype != torch.bfloat16:
            return arena.numpy()
        return _bits(arena).view(np.int16) if self._pairs else _bits(arena)

    def work(self, inputs: StepInputs, shared: int) -> Ints:
        return attention_work.parts(inputs, shared)

    def attend(self, qkv: Array, work: Array, tables: Array, window: int, held: Array, layer: int, out: Array) -> None:
        numba_float32.attention(qkv, work, tables, window, held, layer, numba.get_num_threads(), out)


class Tiles:
    """Weights, KV and the inputs of linear layers in bfloat16, for AMX; the file's codes for one or two rows."""

    inputs: type[np.generic] = np.uint16
    products: np.generic | None = None

    @staticmethod
    def misfit(config: ModelConfig, block_size: int) -> str | None:
        """Which size is no multiple of those of tiles."""
        return _misfit(config, block_size, 16)

    def linear(self, checkpoint: Checkpoint, names: Sequence[str], bias: bool) -> Projection:
        return linear_bf16.load(checkpoint, names, bias)

    def table(self, checkpoint: Checkpoint, name: str) -> Table:
        return linear_bf16.table(checkpoint, name)

    def held(self, arena: torch.Tensor) -> Array:
        return _bits(arena)

    def work(self, inputs: StepInputs, shared: int) -> Ints:
        return attention_work.tiles(inputs, shared)

    def attend(self, qkv: Array, work: Array, tables: Array, window: int, held: Array, layer: int, out: Array) -> None:
        numba_bf16.attention(qkv, work, tables, window, SHAPES, held, layer, numba.get_num_threads(), out)


def _bits(arena: torch.Tensor) -> Array:
    """bfloat16 as uint16, which numpy has."""
    return arena.view(torch.int16).numpy().view(np.uint16)


def _misfit(config: ModelConfig, block_size: int, places: int) -> str | None:
    if block_size % places:
        return f"blocks of {block_size} tokens are not a multiple of {places}"
    for name in ("hidden_size", "intermediate_size", "head_dim"):
        if getattr(config, name) % 32:
            return f"{name} {getattr(config, name)} is not a multiple of 32"
    return None
