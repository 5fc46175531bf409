"""Records the operators of a model for steps of few rows, which one call then computes.

The order of operators is defined once, by layers that call each other (`models`). Called with a `Program` instead of a
step, they compute nothing: their operators are added to a table, with the addresses of weights and of results. Work
without an operator in `kernels.cpu.program` is kept as a function and called in between.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numba
import numpy as np

from legato_engine.backends.cpu.low_rank import LayerProjections
from legato_engine.backends.cpu.step import CpuStep, Projection
from legato_engine.backends.cpu.workspace import Array
from legato_engine.kernels.cpu import program as kernels
from legato_engine.kernels.paths import Path
from legato_engine.kvcache.groups import LayerPlace

Call = Callable[[CpuStep], Any]


@runtime_checkable
class Recordable(Protocol):
    """A projection with operators for a program."""

    def record(self, program: "Program", x: Array, out: Array) -> None: ...


class Program:
    """Implements `Operators` by recording them. Keeps the arrays alive whose addresses it has recorded."""

    rows = kernels.MOST  # layers allocate their results for this number of rows

    def __init__(self, path: Path, adapted: bool = False) -> None:
        self.adapted = adapted
        self._path = path
        self._parts: list[Call] = []
        self._table: list[Array] = []  # of OPERATOR: recorded after the last part
        self._kept_alive: list[Array] = []
        self._rounded: dict[int, tuple[Array, Array]] = {}

    def add(self, kind: int, **fields: Array | np.generic | int) -> None:
        """Records an operator of `kernels.cpu.program`; an array stands for its address."""
        operator = np.zeros((), kernels.OPERATOR)
        operator["kind"] = kind
        for name, value in fields.items():
            operator[name] = self._address(value) if isinstance(value, np.ndarray) else value
        self._table.append(operator)

    def call(self, work: Call) -> None:
        """Records a function. The result of the last one is the result of the program."""
        self._close()
        self._parts.append(work)

    def norm(
        self, x: Array, multiplier: np.float32, residual: Array, weight: Array, eps: np.float32, out: Array
    ) -> None:
        self.add(
            kernels.NORM,
            x=x,
            multiplier=multiplier,
            residual=residual,
            out=out,
            weight=weight,
            width=len(weight),
            eps=eps,
        )

    def norm_heads(self, x: Array, first: int, count: int, weight: Array, eps: np.float32) -> None:
        width, dim = x.shape[1], len(weight)
        self.add(
            kernels.NORM_HEADS, x=x, width=width, weight=weight, first=first, heads=count, dim=dim, eps=eps
        )  # fmt: skip

    def accumulate(self, x: Array, residual: Array) -> None:
        width = x.shape[1]
        self.add(kernels.ADD, out=residual, bias=x, bias_stride=width, width=width)

    def linear(self, projection: Projection, x: Array, out: Array) -> None:
        assert isinstance(projection, Recordable)  # all projections are, on paths with a `family`
        projection.record(self, x, out)

    def update(self, layer: LayerProjections, x: Array, out: Array) -> None:
        projections = {"projection": layer.projection, "projections": layer.projections}
        self.add(kernels.SHRINK, x=x, width=x.shape[1], **projections)
        self.add(kernels.EXPAND, out=out, width=out.shape[1], **projections)

    def rotate(self, parts: Array, heads: int, cos: Array, sin: Array, place: LayerPlace) -> None:
        _, all_heads, dim = parts.shape
        self.add(
            kernels.ROTATE, x=parts, heads=all_heads, queries=heads, dim=dim, pairs=cos.shape[1], cos=cos, sin=sin,
            group=place.group, layer=place.place,
        )  # fmt: skip

    def attend(self, parts: Array, heads: int, window: int, place: LayerPlace, sinks: Array, out: Array) -> None:
        _, all_heads, dim = parts.shape
        self.add(
            kernels.ATTEND, x=parts, heads=all_heads, queries=heads, dim=dim, out=out, window=window,
            group=place.group, layer=place.place, sinks=sinks if len(sinks) else 0,
        )  # fmt: skip

    def silu_mul(self, gate_up: Array, out: Array) -> None:
        self.add(kernels.SILU_MUL, x=gate_up, out=out, width=out.shape[1])

    def gelu_mul(self, gate_up: Array, out: Array) -> None:
        self.add(kernels.GELU_MUL, x=gate_up, out=out, width=out.shape[1])

    def take_operators(self) -> Array:
        """Removes and returns the operators recorded since the last function, OPERATOR [operators]."""
        taken, self._table = np.stack(self._table), []
        return taken

    def rounded(self, inputs: int) -> tuple[Array, Array]:
        """Memory for rows of `inputs` 8-bit activations, and for their scales."""
        if inputs not in self._rounded:
            self._rounded[inputs] = (
                np.zeros((self.rows, inputs), np.int8),
                np.zeros((self.rows, inputs // 16), np.float32),
            )
        return self._rounded[inputs]

    def __call__(self, step: CpuStep) -> Any:
        """Computes a step of at most `rows` rows."""
        self._close()
        result = None
        for part in self._parts:
            result = part(step)
        return result

    def _address(self, array: Array) -> int:
        assert array.flags.c_contiguous
        self._kept_alive.append(array)
        return int(array.ctypes.data)

    def _close(self) -> None:
        if self._table:
            table = np.stack(self._table)
            self._table = []
            self._parts.append(lambda step: _run(self._path, table, step))


def run_rows(path: Path, table: Array, step: CpuStep) -> None:
    """Computes operators for a single row, without attention; the step may have more rows."""
    _compute(path, table, step, step.inputs.positions[:1], step.work[:0])


def _run(path: Path, table: Array, step: CpuStep) -> None:
    _compute(path, table, step, step.inputs.positions, step.work)


def _compute(path: Path, table: Array, step: CpuStep, positions: Array, work: Array) -> None:
    arena, adapted, threads = step.arena, step.adapted_rows, numba.get_num_threads()
    kernels.run(
        path.family, path.kv_tag(arena.dtype), table, positions, step.slots, work, step.tables, arena, step.factors,
        (adapted.order, adapted.items, adapted.inner), threads,
    )  # fmt: skip
