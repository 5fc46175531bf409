"""SiLU(gate) · up, or GELU(gate) · up, in one pass, in the input format of the next linear layer. Each result is
bitwise the same at any position in the arrays, and in every caller that this is compiled into.
"""

import numpy as np
from numba import njit, prange

from legato_engine.kernels.cpu.simd.scalar import exponential, stored

FEW = 2  # rows that are not worth waking a second thread for


@njit(cache=True, error_model="numpy")  # a check for division by zero would keep the loop scalar
def silu_mul_row(gate_up, out):
    inner = out.shape[0]
    gate, up = gate_up[:inner], gate_up[inner:]
    for i in range(inner):
        out[i] = stored(gate[i] / (np.float32(1) + exponential(-gate[i])) * up[i], out)


@njit(cache=True, error_model="numpy")
def gelu_mul_row(gate_up, out):
    """GELU by tanh: (1 + tanh(z)) / 2 is the sigmoid of 2 z."""
    inner = out.shape[0]
    gate, up = gate_up[:inner], gate_up[inner:]
    for i in range(inner):
        x = gate[i]
        twice = np.float32(1.5957691216) * (x + np.float32(0.044715) * x * x * x)
        out[i] = stored(x / (np.float32(1) + exponential(-twice)) * up[i], out)


@njit(cache=True, parallel=True, nogil=True)
def _many(gate_up, rows, out):
    for row in prange(rows):
        silu_mul_row(gate_up[row], out[row])


@njit(cache=True, parallel=True, nogil=True)
def _many_gelu(gate_up, rows, out):
    for row in prange(rows):
        gelu_mul_row(gate_up[row], out[row])


@njit(cache=True)
def silu_mul(gate_up, rows, out):
    """gate_up float32 [rows, 2 · inner] → out [rows, inner], float32 or bfloat16 as uint16."""
    if rows > FEW:
        _many(gate_up, rows, out)
        return
    for row in range(rows):
        silu_mul_row(gate_up[row], out[row])


@njit(cache=True)
def gelu_mul(gate_up, rows, out):
    """As `silu_mul`, with GELU approximated by tanh."""
    if rows > FEW:
        _many_gelu(gate_up, rows, out)
        return
    for row in range(rows):
        gelu_mul_row(gate_up[row], out[row])
