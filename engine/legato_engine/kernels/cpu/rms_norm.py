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
def norm_row(x, multiplier, residual, weight, eps, out):
    """One row of `add_rms_norm`."""
    for i in range(x.shape[0]):
        residual[i] += x[i] * multiplier
    scale = _scale(residual, eps)
    for i in range(x.shape[0]):
        out[i] = stored(residual[i] * scale * weight[i], out)


@njit(cache=True, parallel=True, nogil=True)
def _many(x, multiplier, residual, rows, weight, eps, out):
    for row in prange(rows):
        norm_row(x[row], multiplier, residual[row], weight, eps, out[row])


@njit(cache=True)
def add_rms_norm(x, multiplier, residual, rows, weight, eps, out):
    """residual += x · multiplier; out = its norm. x and residual float32 [rows, hidden]; out float32, or bfloat16
    as uint16; all contiguous.
    """
    if rows > FEW:
        _many(x, multiplier, residual, rows, weight, eps, out)
        return
    for row in range(rows):
        norm_row(x[row], multiplier, residual[row], weight, eps, out[row])


@njit(cache=True)
def norm_head(head, weight, eps):
    """One head of `norm_heads`."""
    scale = _scale(head, eps)
    for i in range(head.shape[0]):
        head[i] *= scale * weight[i]


@njit(cache=True, parallel=True, nogil=True)
def norm_heads(x, first, heads, weight, eps):
    """The norm of each of `heads` neighbours in a row, in place: of `weight`'s size, from number `first` on. x float32
    [rows, width], contiguous.
    """
    dim = weight.shape[0]
    for row in prange(x.shape[0]):
        for head in range(heads):
            at = first + head * dim
            norm_head(x[row, at : at + dim], weight, eps)
