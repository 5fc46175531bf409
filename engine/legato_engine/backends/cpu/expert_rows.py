"""Experts of steps of few rows, from codes and 8-bit activations, in one call: a call for each product would cost more
than the products.
"""

from collections.abc import Sequence

import numpy as np

from legato_engine.backends.cpu.linear_float32 import LinearFloat32
from legato_engine.backends.cpu.program import Program, run_rows
from legato_engine.backends.cpu.step import CpuStep, Projection
from legato_engine.backends.cpu.workspace import Array
from legato_engine.kernels.paths import Path

MOST = 64  # pairs of a token and an expert; more are grouped by expert
_STEPPING = ("x", "out")  # addresses of operators that may differ between pairs


class ExpertRows:
    """The operators of each expert for one token, as a table `[experts, operators]`.

    They are recorded once; a step copies the operators of its pairs and sets the addresses of inputs and results.
    """

    def __init__(
        self, path: Path, experts: Sequence[tuple[Projection, Projection]], inner: int, x: Array, out: Array
    ) -> None:
        """`experts` have the projections gate and up, and down; `can_record` is true for them. x and out are memory,
        float32 [MOST, hidden]."""
        self._path = path
        self._x = x
        self._out = out
        self._program = Program(path)  # keeps its memory alive
        gate_up, gated = np.zeros((1, 2 * inner), np.float32), np.zeros((1, inner), np.float32)
        for first, last in experts:
            self._program.linear(first, self._x, gate_up)
            self._program.silu_mul(gate_up, gated)
            self._program.linear(last, gated, self._out)
        self._table = self._program.take_operators().reshape(len(experts), -1)
        self._strides = {name: self._stride(self._table[0][name]) for name in _STEPPING}

    def __call__(self, step: CpuStep, x: Array, numbers: Array) -> Array:
        """x float32 [rows, hidden], the experts `numbers` int64 [rows, active] → float32 [rows, active, hidden], valid
        until the next call."""
        rows, active = numbers.shape
        count = rows * active
        self._x[:rows] = x
        table = self._table[numbers.reshape(-1)]
        for name, places in (("x", np.arange(count) // active), ("out", np.arange(count))):
            table[name] += places[:, None] * self._strides[name]
        run_rows(self._path, table.reshape(-1), step)
        return self._out[:count].reshape(rows, active, -1)

    def _stride(self, addresses: Array) -> Array:
        """Bytes from a row to the next of each operator's array; 0 if pairs share its memory."""
        bases = np.array([each.ctypes.data for each in (self._x, self._out)])
        own = addresses[:, None] - bases
        return np.where(((own >= 0) & (own < self._x.strides[0])).any(1), self._x.strides[0], 0)


def can_record(experts: Sequence[tuple[Projection, Projection]]) -> bool:
    """True if the operators of all experts are equal, except for weights, and products of codes and bytes."""
    forms = {(_form(first), _form(last)) for first, last in experts}
    return len(forms) == 1 and None not in next(iter(forms))


def _form(projection: Projection) -> object:
    return projection.recorded_form if isinstance(projection, LinearFloat32) else None
