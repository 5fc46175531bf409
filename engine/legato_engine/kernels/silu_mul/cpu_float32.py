"""SiLU(gate) · up in float32, one pass."""

import numpy as np
from numba import njit, prange

from legato_engine.kernels.scalar import exponential

FEW = 2


@njit(cache=True, fastmath=True)
def _row(gate, up, out):
    for i in range(out.shape[0]):
        out[i] = gate[i] / (np.float32(1) + exponential(-gate[i])) * up[i]


@njit(cache=True, parallel=True)
def _many(gate_up, rows, out):
    inner = out.shape[1]
    for row in prange(rows):
        _row(gate_up[row, :inner], gate_up[row, inner:], out[row])


@njit(cache=True)
def silu_mul(gate_up, rows, out):
    """gate_up float32 [rows, 2 · inner] → out float32 [rows, inner]."""
    if rows > FEW:
        _many(gate_up, rows, out)
        return
    inner = out.shape[1]
    for row in range(rows):
        _row(gate_up[row, :inner], gate_up[row, inner:], out[row])
