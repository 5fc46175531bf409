"""Sums over processes that share memory, in the order of ranks: a result does not depend on which one came first.

Both kernels have declared types, so that they are compiled or loaded with this module: a rank whose missing kernels are
only listed, and do nothing meanwhile (`missing`), still arrives.
"""

from numba import njit

from legato_engine.kernels.cpu.atomics import fetch_add, wait_until_at_least
from legato_engine.kernels.cpu.simd.vector import address

LINE = 8  # int64 from one counter to the next: a cache line


@njit("void(int64[::1], int64, int64, int64)", cache=True, nogil=True)
def arrive(counters, rank, ranks, arrivals):
    """Counts this rank's arrival, and waits until all ranks have arrived `arrivals` times. counters int64
    [ranks · LINE], at first 0. What a rank wrote before it arrived is visible to all afterwards."""
    base = address(counters)
    fetch_add(base + rank * LINE * 8, 1)
    for other in range(ranks):
        wait_until_at_least(base + other * LINE * 8, arrivals)


@njit("void(float32[:, ::1], int64, float32[::1])", cache=True, nogil=True)
def add(slots, count, out):
    """Writes the sum over ranks of the first `count` numbers in slots float32 [ranks, …] to out float32 [count]."""
    for i in range(count):
        out[i] = slots[0, i] + slots[1, i]
    for rank in range(2, slots.shape[0]):
        for i in range(count):
            out[i] += slots[rank, i]
