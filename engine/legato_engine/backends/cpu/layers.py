"""Implements `layers.interface` with the operators of a step. The residual stream is float32; `numerics` has the
formats of linear layers and attention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from legato_engine.backends import projections
from legato_engine.backends.cpu import experts, kv_factors, low_rank
from legato_engine.backends.cpu.experts import CpuExperts
from legato_engine.backends.cpu.low_rank import CpuAdaptedRows, CpuAdapter, LayerProjections
from legato_engine.backends.cpu.numerics import Numerics, TokenTable
from legato_engine.backends.cpu.program import Program
from legato_engine.backends.cpu.step import CpuStep, Operators, Projection
from legato_engine.backends.cpu.workspace import Array, CpuBuffer, CpuWorkspace, room
from legato_engine.backends.interface import Forward, Progress
from legato_engine.backends.kv_groups import groups_of
from legato_engine.backends.low_rank import LinearShape, count
from legato_engine.kernels.cpu.rms_norm import add_rms_norm
from legato_engine.kvcache.groups import LayerPlace
from legato_engine.layers.experts import ExpertsShape
from legato_engine.layers.inputs import Ints, StepInputs
from legato_engine.layers.interface import AttentionShape
from legato_engine.layers.low_rank import Pair
from legato_engine.layers.rotary import RotaryTables
from legato_engine.layers.splits import Split
from legato_engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class CpuEmbedding:
    table: TokenTable
    multiplier: np.float32  # of embeddings
    out: CpuBuffer

    def __call__(self, step: Operators) -> Array:
        residual = self.out.take(step.rows)
        step.call(lambda step: self._fill(step, residual))
        return residual

    def _fill(self, step: CpuStep, residual: Array) -> None:
        rows = self.table.rows(step.inputs.tokens)
        residual[: step.rows] = rows if self.multiplier == 1 else rows * self.multiplier


@dataclass(frozen=True, slots=True)
class CpuNorm:
    weight: Array
    eps: np.float32
    multiplier: np.float32  # of x
    nothing: CpuBuffer  # zeros, added if there is no x
    out: CpuBuffer

    def __call__(self, step: Operators, x: Array | None, residual: Array) -> Array:
        out = self.out.take(step.rows)
        added = self.nothing.take(step.rows) if x is None else x
        step.norm(added, self.multiplier, residual, self.weight, self.eps, out)
        return out


@dataclass(frozen=True, slots=True)
class CpuSum:
    out: CpuBuffer | None  # None if linear layers take float32

    def __call__(self, step: Operators, x: Array | None, residual: Array) -> Array:
        if x is not None:
            step.accumulate(x, residual)
        if self.out is None:
            return residual
        out = self.out.take(step.rows)
        step.call(lambda step: self._round(step, residual, out))
        return out

    def _round(self, step: CpuStep, residual: Array, out: Array) -> None:
        rounded = torch.from_numpy(residual[: step.rows]).bfloat16()
        out[: step.rows] = rounded.view(torch.int16).numpy().view(np.uint16)


@dataclass(frozen=True, slots=True)
class CpuOutputNorm:
    weight: Array
    eps: np.float32

    def __call__(self, step: Operators, x: Array) -> Array:
        step.norm_heads(x, 0, 1, self.weight, self.eps)
        return x


@dataclass(frozen=True, slots=True)
class CpuLinear:
    projection: Projection
    layer: LayerProjections
    out: CpuBuffer

    def __call__(self, step: Operators, x: Array) -> Array:
        out = self.out.take(step.rows)
        step.linear(self.projection, x, out)
        if step.adapted:
            step.update(self.layer, x, out)
        return out


@dataclass(frozen=True, slots=True)
class CpuAttention:
    place: LayerPlace
    shape: AttentionShape
    cos: Array
    sin: Array
    norms: tuple[Array, Array] | None  # weights for queries and keys
    sinks: Array  # [heads], or [0]
    eps: np.float32
    out: CpuBuffer

    def __call__(self, step: Operators, qkv: Array) -> Array:
        shape, out = self.shape, self.out.take(step.rows)
        parts = qkv.reshape(len(qkv), -1, shape.head_dim)
        if self.norms is not None:
            queries, keys = self.norms
            wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
            step.norm_heads(qkv, 0, wide // len(queries), queries, self.eps)
            step.norm_heads(qkv, wide, narrow // len(keys), keys, self.eps)
        step.rotate(parts, shape.heads, self.cos, self.sin, self.place)
        step.attend(parts, shape.heads, shape.window or 0, self.place, self.sinks, out)
        return out


@dataclass(frozen=True, slots=True)
class CpuActivation:
    gelu: bool
    out: CpuBuffer

    def __call__(self, step: Operators, gate_up: Array) -> Array:
        out = self.out.take(step.rows)
        (step.gelu_mul if self.gelu else step.silu_mul)(gate_up, out)
        return out


@dataclass(frozen=True, slots=True)
class CpuHead:
    norm: Array
    eps: np.float32
    residual_multiplier: np.float32
    multiplier: float  # of logits
    kind: type[np.generic]
    table: TokenTable
    rows: int

    def __call__(self, step: Operators, x: Array, residual: Array) -> Any:
        """The logits; None if they are only recorded."""
        return step.call(lambda step: self._logits(step, x, residual))

    def _logits(self, step: CpuStep, x: Array, residual: Array) -> torch.Tensor:
        step.hidden = x, residual
        return self.logits(x, residual, step.inputs.sampled)

    def logits(self, x: Array, residual: Array, tokens: Ints) -> torch.Tensor:
        """Logits of these tokens of a step, float32 [tokens, vocab]."""
        count = len(tokens)
        logits = np.empty((room(count), self.table.outputs), np.float32)
        if count:
            normed = np.zeros((room(count), len(self.norm)), self.kind)
            add_rms_norm(x[tokens], self.residual_multiplier, residual[tokens], count, self.norm, self.eps, normed)
            self.table(normed, count, logits)
        given = torch.from_numpy(logits[:count, : self.rows]).contiguous()  # a copy if the vocabulary is padded
        return given.mul_(self.multiplier) if self.multiplier != 1 else given


class CpuBackend:
    """Implements `Backend`."""

    def __init__(
        self, checkpoint: Checkpoint, numerics: Numerics, max_length: int, progress: Progress,
        kv_scales: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        config = checkpoint.config
        self.nbytes = 0
        self.further_tokens: tuple[int, ...] = ()
        self._checkpoint = checkpoint
        self._numerics = numerics
        self._config = config
        self._progress = progress
        self._groups = groups_of(config)
        factors = kv_factors.from_scales(config.layers, config.kv_heads, kv_scales)
        self._factors = kv_factors.by_group(factors, self._groups)
        self._eps = np.float32(config.rms_norm_eps)
        self._residual_multiplier = np.float32(config.residual_multiplier)
        self._angles = RotaryTables(max_length, torch.Tensor.numpy)
        self._tables: dict[str, TokenTable] = {}
        self._head: CpuHead | None = None
        self._last: CpuStep | None = None
        self._programs: dict[bool, Program] = {}  # keys: True for steps with adapters
        self._linears: list[LinearShape] = []
        self._workspace = CpuWorkspace()

    def begin(self, inputs: StepInputs, arena: torch.Tensor) -> CpuStep:
        """The step for layers that compute one operator after another."""
        shared = self._config.heads // self._config.kv_heads
        numerics, adapted = self._numerics, CpuAdaptedRows(inputs.adapted, self._linears, self._numerics.path.adapters)
        return CpuStep(
            inputs, numerics.work(inputs, shared), numerics.arena_view(arena), self._factors, adapted, numerics.attend
        )

    def logits(self, forward: Forward, inputs: StepInputs, arena: torch.Tensor) -> torch.Tensor:
        step = self._last = self.begin(inputs, arena)
        if step.rows > Program.rows or self._numerics.path.family is None:
            return forward(step)
        if step.adapted not in self._programs:
            forward(program := Program(self._numerics.path, step.adapted))
            self._programs[step.adapted] = program
        logits: torch.Tensor = self._programs[step.adapted](step)
        return logits

    def capture(self, forward: Forward, arena: torch.Tensor) -> None:
        """Nothing: the first step of few rows records a program."""

    def capture_missing(self, forward: Forward, arena: torch.Tensor) -> None:
        """Nothing, as `capture`."""

    def logits_of(self, tokens: Ints) -> torch.Tensor:
        assert self._head is not None
        assert self._last is not None
        assert self._last.hidden is not None
        return self._head.logits(*self._last.hidden, tokens)

    def adapter(self, pairs: Mapping[str, Pair]) -> CpuAdapter:
        return low_rank.packed(pairs, self._linears, self._numerics.path.adapters)

    def embedding(self, name: str, rows: int, width: int) -> CpuEmbedding:
        multiplier = np.float32(self._config.embedding_multiplier)
        return CpuEmbedding(self._table(name), multiplier, self._workspace.buffer("residual", width))

    def norm(self, name: str, width: int) -> CpuNorm:
        nothing = self._workspace.buffer("nothing", width)
        return CpuNorm(self._norm(name), self._eps, self._residual_multiplier, nothing, self._out("norm", width))

    def sum(self, width: int) -> CpuSum:
        return CpuSum(None if self._numerics.inputs is np.float32 else self._out("sum", width))

    def output_norm(self, name: str, width: int) -> CpuOutputNorm:
        return CpuOutputNorm(self._norm(name), self._eps)

    def linear(
        self, names: Sequence[str], inputs: int, outputs: Sequence[int], bias: bool = False, split: Split | None = None
    ) -> CpuLinear:
        projection = self._numerics.linear(self._checkpoint, names, bias)
        self.nbytes += projection.nbytes
        layer = LayerProjections(count(self._linears), len(names))
        self._linears.append(LinearShape(tuple(names), tuple(outputs)))
        return CpuLinear(projection, layer, self._workspace.buffer("linear", sum(outputs)))

    def attention(self, layer: int, shape: AttentionShape) -> CpuAttention:
        self._progress((layer + 1) / self._config.layers)
        norms = None
        if shape.query_norm and shape.key_norm:
            norms = self._norm(shape.query_norm), self._norm(shape.key_norm)
        out = self._out("attention", shape.heads * shape.head_dim)
        sinks = self._checkpoint.vector(shape.sinks).numpy() if shape.sinks else np.empty(0, np.float32)
        return CpuAttention(
            self._groups.places[layer], shape, *self._angles[shape.rotation], norms, sinks, self._eps, out
        )

    def silu_mul(self, width: int) -> CpuActivation:
        return CpuActivation(False, self._out("activation", width))

    def gelu_mul(self, width: int) -> CpuActivation:
        return CpuActivation(True, self._out("activation", width))

    def experts(self, shape: ExpertsShape) -> CpuExperts:
        loaded = experts.load(self._checkpoint, shape, self._numerics, self._workspace)
        self.nbytes += loaded.nbytes
        return loaded

    def head(self, norm: str, weight: str, rows: int, width: int) -> CpuHead:
        self._head = CpuHead(
            self._norm(norm), self._eps, self._residual_multiplier, self._config.logits_multiplier,
            self._numerics.inputs, self._table(weight), rows,
        )  # fmt: skip
        return self._head

    def _norm(self, name: str) -> Array:
        return projections.norm(self._checkpoint, name).numpy()

    def _out(self, operator: str, width: int) -> CpuBuffer:
        """A buffer for inputs of linear layers."""
        return self._workspace.buffer(operator, width, self._numerics.inputs)

    def _table(self, name: str) -> TokenTable:
        """An embedding or output matrix; a model may have one matrix for both."""
        if name not in self._tables:
            self._tables[name] = self._numerics.table(self._checkpoint, name)
            self.nbytes += self._tables[name].nbytes
        return self._tables[name]
