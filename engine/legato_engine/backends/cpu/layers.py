"""Implements `layers.interface` by compiled kernels. The residual stream is float32; what linear layers and attention
compute in is `numerics`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from legato_engine.backends.cpu.linear_float32 import LinearFloat32
from legato_engine.backends.cpu.numerics import Numerics, Projection, Table
from legato_engine.backends.cpu.program import Program
from legato_engine.backends.cpu.step import Array, Buffer, CpuStep, Workspace, room
from legato_engine.backends.interface import Forward, Progress
from legato_engine.kernels import program as operators
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
    out: Buffer

    def __call__(self, step: CpuStep | Program) -> Array:
        residual = self.out.take(step.rows)
        if isinstance(step, Program):
            step.call(lambda later: self._fill(later, residual))
        else:
            self._fill(step, residual)
        return residual

    def _fill(self, step: CpuStep, residual: Array) -> None:
        residual[: step.rows] = self.table.rows(step.inputs.tokens)


@dataclass(frozen=True, slots=True)
class CpuNorm:
    weight: Array
    eps: np.float32
    nothing: Buffer  # zeros, to add where nothing is to be added
    out: Buffer

    def __call__(self, step: CpuStep | Program, x: Array | None, residual: Array) -> Array:
        if x is None:
            x = self.nothing.take(step.rows)
        out = self.out.take(step.rows)
        if isinstance(step, Program):
            step.add(operators.NORM, x, residual, out, self.weight, len(self.weight), self.eps)
            return out
        add_rms_norm(x, residual, step.rows, self.weight, self.eps, out)
        return out


@dataclass(frozen=True, slots=True)
class CpuLinear:
    projection: Projection
    out: Buffer

    def __call__(self, step: CpuStep | Program, x: Array) -> Array:
        out = self.out.take(step.rows)
        if isinstance(step, Program):
            assert isinstance(self.projection, LinearFloat32)  # no others are recorded
            self.projection.record(step, x, out)
        else:
            self.projection(x, step.rows, out)
        return out


@dataclass(frozen=True, slots=True)
class CpuAttention:
    numerics: Numerics
    layer: int
    shape: AttentionShape
    cos: Array
    sin: Array
    norms: tuple[Array, Array] | None  # weights for queries and keys
    eps: np.float32
    out: Buffer

    def __call__(self, step: CpuStep | Program, qkv: Array) -> Array:
        if isinstance(step, Program):
            return self._record(step, qkv)
        shape, rows, inputs = self.shape, step.rows, step.inputs
        parts = qkv[:rows].reshape(rows, -1, shape.head_dim)
        if self.norms is not None:
            queries, keys = self.norms
            norm_heads(parts, 0, shape.heads, queries, self.eps)
            norm_heads(parts, shape.heads, shape.kv_heads, keys, self.eps)
        rotate_and_write(parts, shape.heads, inputs.positions, self.cos, self.sin, step.arena, self.layer, inputs.slots)
        found = self.out.take(rows)
        out = found[:rows].reshape(rows, shape.heads, shape.head_dim)
        self.numerics.attend(parts, step.work, inputs.tables, shape.window or 0, step.arena, self.layer, out)
        return found

    def _record(self, program: Program, qkv: Array) -> Array:
        shape, found = self.shape, self.out.take(program.rows)
        heads, dim = shape.heads + 2 * shape.kv_heads, shape.head_dim
        if self.norms is not None:
            end = shape.heads + shape.kv_heads
            program.add(operators.NORM_HEADS, qkv, self.norms[0], heads, 0, shape.heads, dim, self.eps)
            program.add(operators.NORM_HEADS, qkv, self.norms[1], heads, shape.heads, end, dim, self.eps)
        program.add(operators.ROTATE, qkv, heads, shape.heads, dim, self.cos, self.sin, self.layer)
        program.add(operators.ATTEND, qkv, heads, shape.heads, dim, found, shape.window or 0, self.layer)
        return found


@dataclass(frozen=True, slots=True)
class CpuActivation:
    out: Buffer

    def __call__(self, step: CpuStep | Program, gate_up: Array) -> Array:
        out = self.out.take(step.rows)
        if isinstance(step, Program):
            step.add(operators.SILU_MUL, gate_up, out, out.shape[1])
        else:
            silu_mul(gate_up, step.rows, out)
        return out


@dataclass(frozen=True, slots=True)
class CpuHead:
    norm: Array
    eps: np.float32
    kind: type[np.generic]
    table: Table
    rows: int

    def __call__(self, step: CpuStep | Program, x: Array, residual: Array) -> torch.Tensor:
        if isinstance(step, Program):
            step.call(lambda later: self(later, x, residual))
            return torch.empty(0)  # nothing is known yet
        sampled = step.inputs.sampled
        count = len(sampled)
        logits = np.empty((room(count), self.table.outputs), np.float32)
        if count:
            normed = np.zeros((room(count), len(self.norm)), self.kind)
            add_rms_norm(x[sampled], residual[sampled], count, self.norm, self.eps, normed)
            self.table(normed, count, logits)
        return torch.from_numpy(logits[:count, : self.rows]).contiguous()  # a copy where the vocabulary was padded


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
        self._program: Program | None = None
        self._workspace = Workspace()
        cos, sin = rotary.tables(config.head_dim, config.rope_theta, config.rope_scaling, max_length)
        self._cos, self._sin = cos.numpy(), sin.numpy()

    def begin(self, inputs: StepInputs, arena: torch.Tensor) -> CpuStep:
        """What the layers need to compute a step, each by itself."""
        shared = self._config.heads // self._config.kv_heads
        return CpuStep(inputs, self._numerics.work(inputs, shared), self._numerics.held(arena))

    def logits(self, forward: Forward, inputs: StepInputs, arena: torch.Tensor) -> torch.Tensor:
        step = self.begin(inputs, arena)
        if step.rows > Program.rows or not self._numerics.recorded:
            return forward(step)
        if self._program is None:
            forward(program := Program())
            self._program = program
        logits: torch.Tensor = self._program(step)
        return logits

    def embedding(self, name: str, rows: int, width: int) -> CpuEmbedding:
        return CpuEmbedding(self._table(name), self._workspace.buffer("residual", width))

    def norm(self, name: str, width: int) -> CpuNorm:
        nothing = self._workspace.buffer("nothing", width)
        return CpuNorm(self._vector(name), self._eps, nothing, self._out("norm", width))

    def linear(self, names: Sequence[str], inputs: int, outputs: Sequence[int], bias: bool = False) -> CpuLinear:
        projection = self._numerics.linear(self._checkpoint, names, bias)
        self.nbytes += projection.nbytes
        return CpuLinear(projection, self._workspace.buffer("linear", sum(outputs)))

    def attention(self, layer: int, shape: AttentionShape) -> CpuAttention:
        self._progress((layer + 1) / self._config.layers)
        norms = None
        if shape.query_norm and shape.key_norm:
            norms = self._vector(shape.query_norm), self._vector(shape.key_norm)
        out = self._out("attention", shape.heads * shape.head_dim)
        return CpuAttention(self._numerics, layer, shape, self._cos, self._sin, norms, self._eps, out)

    def silu_mul(self, width: int) -> CpuActivation:
        return CpuActivation(self._out("activation", width))

    def head(self, norm: str, weight: str, rows: int, width: int) -> CpuHead:
        return CpuHead(self._vector(norm), self._eps, self._numerics.inputs, self._table(weight), rows)

    def _vector(self, name: str) -> Array:
        return self._checkpoint.vector(f"{name}.weight").numpy()

    def _out(self, operator: str, width: int) -> Buffer:
        """For what linear layers take."""
        return self._workspace.buffer(operator, width, self._numerics.inputs)

    def _table(self, name: str) -> Table:
        """An embedding or output matrix, which may be one and the same."""
        if name not in self._tables:
            self._tables[name] = self._numerics.table(self._checkpoint, name)
            self.nbytes += self._tables[name].nbytes
        return self._tables[name]
