"""RMSNorm that adds first, in one call; its result has the input format of the next linear layer.

A row is bitwise the same from these functions and from a program of a whole step, into which the functions of a row are
compiled once more.
"""

import numpy as np
from numba import njit, prange

from legato_engine.kernels.cpu.simd.dot import dot
from legato_engine.kernels.cpu.simd.scalar import stored

FEW = 4  # rows that are not worth waking a second thread for


@njit(cache=True, error_model="numpy")
def _scale(row, eps):
    return np.float32(1) / np.sqrt(dot(row, row) / np.float32(row.shape[0]) + eps)


@njit(cache=True)
def norm_row(x, residual, weight, eps, out):
    """One row of `add_rms_norm`."""
    for i in range(x.shape[0]):
        residual[i] += x[i]
    scale = _scale(residual, eps)
    for i in range(x.shape[0]):
        out[i] = stored(residual[i] * scale * weight[i], out)


@njit(cache=True, parallel=True, nogil=True)
def _many(x, residual, rows, weight, eps, out):
    for row in prange(rows):
        norm_row(x[row], residual[row], weight, eps, out[row])


@njit(cache=True)
def add_rms_norm(x, residual, rows, weight, eps, out):
    """residual += x; out = its norm. x and residual float32 [rows, hidden]; out float32, or bfloat16 as uint16; all
    contiguous.
    """
    if rows > FEW:
        _many(x, residual, rows, weight, eps, out)
        return
    for row in range(rows):
        norm_row(x[row], residual[row], weight, eps, out[row])


@njit(cache=True)
def norm_head(head, weight, eps):
    """One head of `norm_heads`."""
    scale = _scale(head, eps)
    for i in range(head.shape[0]):
        head[i] *= scale * weight[i]


@njit(cache=True, parallel=True, nogil=True)
def norm_heads(parts, first, heads, weight, eps):
    """The norm of each of `heads` heads from `first` on, in place. parts float32 [rows, all heads, dim], contiguous."""
    for row in prange(parts.shape[0]):
        for head in range(first, first + heads):
            norm_head(parts[row, head], weight, eps)
