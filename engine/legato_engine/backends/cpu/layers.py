"""Implements `layers.interface` by compiled kernels. The residual stream is float32; what linear layers and attention
compute in is `numerics`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from legato_engine.backends.cpu.numerics import Numerics, Projection, Table
from legato_engine.backends.cpu.step import Array, CpuStep, Workspace, room
from legato_engine.backends.interface import Progress
from legato_engine.kernels.rms_norm.numba import add_rms_norm, norm_heads
from legato_engine.kernels.rope.numba import rotate_and_write
from legato_engine.kernels.silu_mul.numba import silu_mul
from legato_engine.layers import rotary
from legato_engine.layers.inputs import StepInputs
from legato_engine.layers.interface import AttentionShape
from legato_engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class CpuEmbedding:
    table: Table
    width: int

    def __call__(self, step: CpuStep) -> Array:
        residual = step.workspace.take("residual", step.rows, self.width)
        residual[: step.rows] = self.table.rows(step.inputs.tokens)
        return residual


@dataclass(frozen=True, slots=True)
class CpuNorm:
    weight: Array
    eps: np.float32
    kind: type[np.generic]

    def __call__(self, step: CpuStep, x: Array | None, residual: Array) -> Array:
        width = len(self.weight)
        if x is None:
            x = step.workspace.take("nothing", step.rows, width)
        out = step.workspace.take("norm", step.rows, width, self.kind)
        add_rms_norm(x, residual, step.rows, self.weight, self.eps, out)
        return out


@dataclass(frozen=True, slots=True)
class CpuLinear:
    projection: Projection
    width: int

    def __call__(self, step: CpuStep, x: Array) -> Array:
        out = step.workspace.take("linear", step.rows, self.width)
        self.projection(x, step.rows, out)
        return out


@dataclass(frozen=True, slots=True)
class CpuAttention:
    numerics: Numerics
    layer: int
    shape: AttentionShape
    cos: Array
    sin: Array
    norms: tuple[CpuNorm, CpuNorm] | None

    def __call__(self, step: CpuStep, qkv: Array) -> Array:
        shape, rows, inputs = self.shape, step.rows, step.inputs
        parts = qkv[:rows].reshape(rows, -1, shape.head_dim)
        if self.norms is not None:
            queries, keys = self.norms
            norm_heads(parts, 0, shape.heads, queries.weight, queries.eps)
            norm_heads(parts, shape.heads, shape.kv_heads, keys.weight, keys.eps)
        rotate_and_write(parts, shape.heads, inputs.positions, self.cos, self.sin, step.arena, self.layer, inputs.slots)
        found = step.workspace.take("attention", rows, shape.heads * shape.head_dim, self.numerics.inputs)
        out = found[:rows].reshape(rows, shape.heads, shape.head_dim)
        self.numerics.attend(parts, step.work, inputs.tables, shape.window or 0, step.arena, self.layer, out)
        return found


@dataclass(frozen=True, slots=True)
class CpuActivation:
    width: int
    kind: type[np.generic]

    def __call__(self, step: CpuStep, gate_up: Array) -> Array:
        out = step.workspace.take("activation", step.rows, self.width, self.kind)
        silu_mul(gate_up, step.rows, out)
        return out


@dataclass(frozen=True, slots=True)
class CpuHead:
    norm: CpuNorm
    table: Table
    rows: int
    width: int

    def __call__(self, step: CpuStep, x: Array, residual: Array) -> torch.Tensor:
        sampled = step.inputs.sampled
        count = len(sampled)
        logits = np.empty((room(count), self.table.outputs), np.float32)
        if count:
            normed = np.zeros((room(count), self.width), self.norm.kind)
            add_rms_norm(x[sampled], residual[sampled], count, self.norm.weight, self.norm.eps, normed)
            self.table(normed, count, logits)
        return torch.from_numpy(logits[:count, : self.rows])


class CpuBackend:
    """Implements `Backend`."""

    def __init__(self, checkpoint: Checkpoint, numerics: Numerics, max_length: int, progress: Progress) -> None:
        config = checkpoint.config
        self.nbytes = 0
        self._checkpoint = checkpoint
        self._numerics = numerics
        self._config = config
        self._progress = progress
        self._eps = np.float32(config.rms_norm_eps)
        self._tables: dict[str, Table] = {}
        self._workspace = Workspace()
        cos, sin = rotary.tables(config.head_dim, config.rope_theta, config.rope_scaling, max_length)
        self._cos, self._sin = cos.numpy(), sin.numpy()

    def begin(self, inputs: StepInputs, arena: torch.Tensor) -> CpuStep:
        shared = self._config.heads // self._config.kv_heads
        return CpuStep(inputs, shared, self._numerics.held(arena), self._workspace)

    def embedding(self, name: str, rows: int, width: int) -> CpuEmbedding:
        return CpuEmbedding(self._table(name), width)

    def norm(self, name: str, width: int) -> CpuNorm:
        return CpuNorm(self._checkpoint.vector(f"{name}.weight").numpy(), self._eps, self._numerics.inputs)

    def linear(self, names: Sequence[str], inputs: int, outputs: Sequence[int], bias: bool = False) -> CpuLinear:
        projection = self._numerics.linear(self._checkpoint, names, bias)
        self.nbytes += projection.nbytes
        return CpuLinear(projection, sum(outputs))

    def attention(self, layer: int, shape: AttentionShape) -> CpuAttention:
        self._progress((layer + 1) / self._config.layers)
        norms = None
        if shape.query_norm and shape.key_norm:
            norms = self.norm(shape.query_norm, shape.head_dim), self.norm(shape.key_norm, shape.head_dim)
        return CpuAttention(self._numerics, layer, shape, self._cos, self._sin, norms)

    def silu_mul(self, width: int) -> CpuActivation:
        return CpuActivation(width, self._numerics.inputs)

    def head(self, norm: str, weight: str, rows: int, width: int) -> CpuHead:
        return CpuHead(self.norm(norm, width), self._table(weight), rows, width)

    def _table(self, name: str) -> Table:
        """An embedding or output matrix, which may be one and the same."""
        if name not in self._tables:
            self._tables[name] = self._numerics.table(self._checkpoint, name)
            self.nbytes += self._tables[name].nbytes
        return self._tables[name]
