"""What the layers of a model compute for few rows, recorded once and then computed by one call for each step.

A model is told once, as layers that call each other (`models`). Called with a `Program` instead of a step, its
operators are added to a table, with the addresses of weights and of the memory they compute into, and nothing is
computed. What `kernels.program` has no operator for is kept as a function and called in between.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numba
import numpy as np

from legato_engine.backends.cpu.step import CpuStep, Projection
from legato_engine.backends.cpu.workspace import Array
from legato_engine.kernels import program as kernels

Call = Callable[[CpuStep], Any]


@runtime_checkable
class Recordable(Protocol):
    """A projection that a program has operators for."""

    def record(self, program: "Program", x: Array, out: Array) -> None: ...


class Program:
    """Implements `Operators` by recording. Memory whose address is in it lives as long as it does."""

    rows = kernels.MOST  # for layers: the room they take

    def __init__(self, kind: np.generic, adapted: bool = False) -> None:
        """`kind`: by which products of bytes, one of `numba_int8_kinds`."""
        self.adapted = adapted
        self._kind = kind
        self._parts: list[Call] = []
        self._table: list[list[int]] = []  # operators after the last part
        self._held: list[Array] = []
        self._rounded: dict[int, tuple[Array, Array]] = {}

    def add(self, operator: int, *numbers: Array | np.generic | int) -> None:
        """An operator of `kernels.program`: an array stands for its address, a float32 for its bits."""
        row = [operator, *(self._number(number) for number in numbers)]
        self._table.append(row + [0] * (kernels.FIELDS - len(row)))

    def call(self, work: Call) -> None:
        """What the last of these returns is the result."""
        self._close()
        self._parts.append(work)

    def norm(self, x: Array, residual: Array, weight: Array, eps: np.float32, out: Array) -> None:
        self.add(kernels.NORM, x, residual, out, weight, len(weight), eps)

    def norm_heads(self, parts: Array, first: int, count: int, weight: Array, eps: np.float32) -> None:
        _, heads, dim = parts.shape
        self.add(kernels.NORM_HEADS, parts, weight, heads, first, first + count, dim, eps)

    def linear(self, projection: Projection, x: Array, out: Array) -> None:
        assert isinstance(projection, Recordable)  # `Numerics.products`
        projection.record(self, x, out)

    def rotate(self, parts: Array, heads: int, cos: Array, sin: Array, layer: int) -> None:
        self.add(kernels.ROTATE, parts, parts.shape[1], heads, parts.shape[2], cos, sin, layer)

    def attend(self, parts: Array, heads: int, window: int, layer: int, out: Array) -> None:
        self.add(kernels.ATTEND, parts, parts.shape[1], heads, parts.shape[2], out, window, layer)

    def silu_mul(self, gate_up: Array, out: Array) -> None:
        self.add(kernels.SILU_MUL, gate_up, out, out.shape[1])

    def rounded(self, inputs: int) -> tuple[Array, Array]:
        """Memory for rows of so many 8-bit activations, and for their scales."""
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

    def _number(self, number: Array | np.generic | int) -> int:
        if isinstance(number, np.ndarray):
            assert number.flags.c_contiguous
            self._held.append(number)
            return int(number.ctypes.data)
        return int(number.view(np.int32)) if isinstance(number, np.float32) else int(number)

    def _close(self) -> None:
        if self._table:
            table = np.array(self._table, np.int64)
            self._table = []
            self._parts.append(lambda step: _run(self._kind, table, step))


def _run(kind: np.generic, table: Array, step: CpuStep) -> None:
    inputs, threads = step.inputs, numba.get_num_threads()
    kernels.run(kind, table, inputs.positions, inputs.slots, step.work, inputs.tables, step.arena, threads)
