"""Low-rank updates of some tokens' outputs on a processor. A token's update is bitwise the same among few tokens
and among many, though `_token` is compiled into a function for each.
"""

import numpy as np
from numba import njit, prange

from legato_engine.kernels.cpu.simd.dot import dot
from legato_engine.kernels.cpu.simd.scalar import fused, read

FEW = 4  # tokens that are not worth waking a second thread for


@njit(cache=True, nogil=True)
def _token(x, down, up, parts, out):
    ranks, inputs = down.shape
    floats, inner = np.empty(inputs, np.float32), np.empty(ranks, np.float32)
    for i in range(inputs):
        floats[i] = read(x[i])
    for rank in range(ranks):
        inner[rank] = dot(down[rank], floats)
    for part in range(len(parts)):
        begin, end, first, size, at = parts[part]
        to = out[first : first + size]
        for rank in range(begin, end):
            row, factor = up[at + (rank - begin) * size : at + (rank - begin + 1) * size], inner[rank]
            for i in range(size):
                to[i] = fused(factor, row[i], to[i])


@njit(cache=True, parallel=True, nogil=True)
def _many(x, tokens, down, up, parts, out):
    for index in prange(len(tokens)):
        _token(x[tokens[index]], down, up, parts, out[tokens[index]])


@njit(cache=True)
def add(x, tokens, down, up, parts, out):
    """out[tokens] += B (A x[tokens]) for each of `parts` = (its first rank, end of them, first output, outputs, where
    its B begins in `up`).

    x [rows, in], float32 or bfloat16 as uint16; tokens int64 [some], each once; down float32 [ranks, in]; up float32,
    each B transposed: [its ranks, its outputs]; out float32 [rows, out]."""
    if len(tokens) > FEW:
        _many(x, tokens, down, up, parts, out)
        return
    for index in range(len(tokens)):
        _token(x[tokens[index]], down, up, parts, out[tokens[index]])
