"""In which numbers the kernels compute: how linear layers and KV are held, and which attention reads that KV.

Sums, softmax and the residual stream are float32 in all of them.
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
from legato_engine.kernels.attention import numba_bf16, numba_float32
from legato_engine.kernels.linear.numba_tiles import SHAPES
from legato_engine.kernels.paths import Attention, Path
from legato_engine.layers.inputs import Ints, StepInputs
from legato_engine.weights.checkpoint import Checkpoint


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
    """Float32 weights, or the file's codes. The path says what is rounded: activations of linear layers to 8 bits, and
    queries and weights of attention to bfloat16 if the arena holds it.
    """

    inputs: type[np.generic] = np.float32

    def __init__(self, path: Path) -> None:
        self._path = path
        self.products = path.family
        self._scratch = Scratch()

    def linear(self, checkpoint: Checkpoint, names: Sequence[str], bias: bool) -> Projection:
        return linear_float32.load(checkpoint, names, bias, self._path, self._scratch)

    def table(self, checkpoint: Checkpoint, name: str) -> Table:
        return linear_float32.table(checkpoint, name, self._path, self._scratch)

    def held(self, arena: torch.Tensor) -> Array:
        if arena.dtype != torch.bfloat16:
            return arena.numpy()
        return _bits(arena).view(np.int16) if self._path.attention is Attention.PAIRS else _bits(arena)

    def work(self, inputs: StepInputs, shared: int) -> Ints:
        return attention_work.parts(inputs, shared)

    def attend(self, qkv: Array, work: Array, tables: Array, window: int, held: Array, layer: int, out: Array) -> None:
        numba_float32.attention(qkv, work, tables, window, held, layer, numba.get_num_threads(), out)


class Tiles:
    """Weights, KV and the inputs of linear layers in bfloat16, for AMX; the file's codes for one or two rows."""

    inputs: type[np.generic] = np.uint16
    products: np.generic | None = None

    def __init__(self, path: Path) -> None:
        self._path = path

    def linear(self, checkpoint: Checkpoint, names: Sequence[str], bias: bool) -> Projection:
        return linear_bf16.load(checkpoint, names, bias, self._path)

    def table(self, checkpoint: Checkpoint, name: str) -> Table:
        return linear_bf16.table(checkpoint, name, self._path)

    def held(self, arena: torch.Tensor) -> Array:
        return _bits(arena)

    def work(self, inputs: StepInputs, shared: int) -> Ints:
        return attention_work.tiles(inputs, shared)

    def attend(self, qkv: Array, work: Array, tables: Array, window: int, held: Array, layer: int, out: Array) -> None:
        numba_bf16.attention(qkv, work, tables, window, SHAPES, held, layer, numba.get_num_threads(), out)


def make(path: Path) -> Numerics:
    return Tiles(path) if path.attention is Attention.TILES else Float32(path)


def _bits(arena: torch.Tensor) -> Array:
    """bfloat16 as uint16, which numpy has."""
    return arena.view(torch.int16).numpy().view(np.uint16)
