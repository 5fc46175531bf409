"""The threads that compute kernels."""

import numpy as np
from numba import njit, prange, types

_gettid = types.ExternalFunction("gettid", types.int32())


@njit(cache=True, parallel=True)
def thread_ids(count):
    """int64 [count]: the system's ids of the threads that take one of `count` equal parts each; the caller's first."""
    ids = np.empty(count, np.int64)
    for part in prange(count):
        ids[part] = _gettid()
    return ids
