"""RMSNorm that adds first, in one pass and one call; leaves what the linear layer after it takes."""

import numpy as np
from numba import njit, prange

from legato_engine.kernels.scalar import RELAXED, stored

FEW = 4  # rows that are not worth waking a second thread for


@njit(cache=True, fastmath=RELAXED)
def norm_row(x, residual, weight, eps, out):
    squares = np.float32(0)
    for i in range(x.shape[0]):
        residual[i] += x[i]
        squares += residual[i] * residual[i]
    scale = np.float32(1) / np.sqrt(squares / np.float32(x.shape[0]) + eps)
    for i in range(x.shape[0]):
        out[i] = stored(residual[i] * scale * weight[i], out)


@njit(cache=True, parallel=True, nogil=True, fastmath=RELAXED)
def _many(x, residual, rows, weight, eps, out):
    for row in prange(rows):
        norm_row(x[row], residual[row], weight, eps, out[row])


@njit(cache=True)
def add_rms_norm(x, residual, rows, weight, eps, out):
    """residual += x; out = its norm. x and residual float32 [rows, hidden]; out float32, or bfloat16 as uint16."""
    if rows > FEW:
        _many(x, residual, rows, weight, eps, out)
        return
    for row in range(rows):
        norm_row(x[row], residual[row], weight, eps, out[row])


@njit(cache=True, fastmath=RELAXED)
def norm_head(head, weight, eps):
    squares = np.float32(0)
    for i in range(head.shape[0]):
        squares += head[i] * head[i]
    scale = np.float32(1) / np.sqrt(squares / np.float32(head.shape[0]) + eps)
    for i in range(head.shape[0]):
        head[i] *= scale * weight[i]


@njit(cache=True, parallel=True, nogil=True, fastmath=RELAXED)
def norm_heads(parts, first, heads, weight, eps):
    """The norm of each of `heads` heads from `first` on, in place. parts float32 [rows, all heads, dim]."""
    for row in prange(parts.shape[0]):
        for head in range(first, first + heads):
            norm_head(parts[row, head], weight, eps)
