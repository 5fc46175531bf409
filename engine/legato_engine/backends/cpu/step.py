"""One step on CPUs: its inputs, and the operators that layers are made of."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from legato_engine.backends.cpu.low_rank import CpuAdaptedRows, LayerProjections
from legato_engine.backends.cpu.workspace import Array
from legato_engine.kernels.cpu.rms_norm import add_rms_norm, norm_heads
from legato_engine.kernels.cpu.rope import rotate_and_write
from legato_engine.kernels.cpu.silu_mul import gelu_mul, silu_mul
from legato_engine.kvcache.groups import LayerPlace
from legato_engine.layers.inputs import Ints, StepInputs
from legato_engine.layers.kv_factors import KVFactors

Attend = Callable[[Array, Array, Ints, int, Array, int, Array, Array, Array], None]  # `Numerics.attend`


class Projection(Protocol):
    """Computes x [room, in] → out [room, out] for the first `rows`; `nbytes` is the size of its weights."""

    def __call__(self, x: Array, rows: int, out: Array) -> None: ...
    @property
    def nbytes(self) -> int: ...


class Operators(Protocol):
    """The operators that layers of this backend call: a step computes them, a `Program` records them.

    All arrays have room for `rows` rows. x, residual and qkv are float32; out has the format of linear layers' inputs.
    """

    @property
    def rows(self) -> int: ...

    @property
    def adapted(self) -> bool:
        """True if adapters update linear layers."""

    def call(self, work: "Callable[[CpuStep], Any]") -> Any:
        """Calls a function that has no operator, and returns its result; None if it is only recorded."""

    def norm(
        self, x: Array, multiplier: np.float32, residual: Array, weight: Array, eps: np.float32, out: Array
    ) -> None:
        """Computes residual += x · multiplier and out = RMSNorm(residual)."""

    def norm_heads(self, x: Array, first: int, count: int, weight: Array, eps: np.float32) -> None:
        """Computes RMSNorm in place, of `count` heads of each row from head `first` on; weight [dim]."""

    def accumulate(self, x: Array, residual: Array) -> None:
        """Computes residual += x."""

    def linear(self, projection: Projection, x: Array, out: Array) -> None: ...

    def update(self, layer: LayerProjections, x: Array, out: Array) -> None:
        """Adds the adapters' updates of a linear layer to its results."""

    def rotate(self, parts: Array, heads: int, cos: Array, sin: Array, place: LayerPlace) -> None:
        """Rotates parts [rows, heads + 2 · kv_heads, dim] in place by RoPE, and writes keys and values to the arena.

        cos, sin [positions, pairs].
        """

    def attend(self, parts: Array, heads: int, window: int, place: LayerPlace, sinks: Array, out: Array) -> None:
        """Computes attention: parts after `rotate` → out [rows, heads · dim]. A window of 0 is unlimited; `sinks`
        [heads], or empty."""

    def silu_mul(self, gate_up: Array, out: Array) -> None: ...
    def gelu_mul(self, gate_up: Array, out: Array) -> None: ...


class CpuStep:
    """Implements `Operators` by computing. `arena` comes from `Numerics.arena_view`, in KVLayout's shape.

    `slots` [groups, tokens] and `tables` [groups, rows, blocks] have an entry for each group of layers.
    """

    __slots__ = ("_attend", "adapted_rows", "arena", "factors", "hidden", "inputs", "rows", "slots", "tables", "work")

    def __init__(
        self, inputs: StepInputs, work: Array, arena: Array, factors: KVFactors[Array], adapted: CpuAdaptedRows,
        attend: Attend,
    ) -> None:  # fmt: skip
        """`work` is the work list for `attend`; `factors` are float32 [groups, layers of a block, 2, kv_heads]."""
        self.inputs = inputs
        self.slots, self.tables = inputs.slots[None], inputs.tables[None]
        if inputs.windows:
            self.slots = np.stack([inputs.slots, *[window.slots for window in inputs.windows]])
            self.tables = np.stack([inputs.tables, *[window.tables for window in inputs.windows]])
        self.hidden: tuple[Array, Array] | None = None  # the head's inputs, valid until the next step
        self.rows = len(inputs.tokens)
        self.adapted_rows = adapted
        self.work = work
        self.arena = arena
        self.factors = factors
        self._attend = attend

    @property
    def adapted(self) -> bool:
        return bool(self.inputs.adapted)

    def call(self, work: "Callable[[CpuStep], Any]") -> Any:
        return work(self)

    def norm(
        self, x: Array, multiplier: np.float32, residual: Array, weight: Array, eps: np.float32, out: Array
    ) -> None:
        add_rms_norm(x, multiplier, residual, self.rows, weight, eps, out)

    def norm_heads(self, x: Array, first: int, count: int, weight: Array, eps: np.float32) -> None:
        norm_heads(x[: self.rows], first, count, weight, eps)

    def accumulate(self, x: Array, residual: Array) -> None:
        residual[: self.rows] += x[: self.rows]

    def linear(self, projection: Projection, x: Array, out: Array) -> None:
        projection(x, self.rows, out)

    def update(self, layer: LayerProjections, x: Array, out: Array) -> None:
        self.adapted_rows.add(x, out, layer)

    def rotate(self, parts: Array, heads: int, cos: Array, sin: Array, place: LayerPlace) -> None:
        positions, slots, factors = self.inputs.positions, self.slots[place.group], self.factors.writing[place.group]
        rotate_and_write(parts[: self.rows], heads, positions, cos, sin, self.arena, place.place, slots, factors)

    def attend(self, parts: Array, heads: int, window: int, place: LayerPlace, sinks: Array, out: Array) -> None:
        rows, tables, layer = self.rows, self.tables[place.group], place.place
        out_by_head = out[:rows].reshape(rows, heads, parts.shape[2])
        factors = self.factors.reading[place.group]
        self._attend(parts[:rows], self.work, tables, window, self.arena, layer, factors, sinks, out_by_head)

    def silu_mul(self, gate_up: Array, out: Array) -> None:
        silu_mul(gate_up, self.rows, out)

    def gelu_mul(self, gate_up: Array, out: Array) -> None:
        gelu_mul(gate_up, self.rows, out)
