"""SiLU(gate) · up that leaves bfloat16, ready for the linear layer that follows."""

import numpy as np
from numba import njit, prange

from legato_engine.kernels.scalar import exponential, narrowed, widened

FEW = 2


@njit(cache=True, fastmath=True, error_model="numpy")  # a check for division by zero would keep the loop scalar
def _row(gate_up, out, sums):
    inner = out.shape[0]
    gate, up = gate_up[:inner], gate_up[inner:]
    for i in range(inner):
        out[i] = narrowed(gate[i] / (np.float32(1) + exponential(-gate[i])) * up[i])
    for group in range(sums.shape[0]):
        total = np.float32(0)
        for i in range(group * 32, group * 32 + 32):
            total += widened(out[i])
        sums[group] = total


@njit(cache=True, parallel=True, fastmath=True)
def _many(gate_up, rows, out, sums):
    for row in prange(rows):
        _row(gate_up[row], out[row], sums[row])


@njit(cache=True)
def silu_mul(gate_up, rows, out, sums):
    """gate_up float32 [rows, 2 · inner] → out bfloat16 [rows, inner], sums [rows, inner/32] of each group of 32."""
    if rows > FEW:
        _many(gate_up, rows, out, sums)
        return
    for row in range(rows):
        _row(gate_up[row], out[row], sums[row])
