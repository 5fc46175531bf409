"""A product of two rows with a defined order of sums. Kernels are compiled into several callers: if the compiler could
choose the order, the last bits would differ between callers.
"""

from numba import njit

from legato_engine.kernels.cpu.simd.lanes import across
from legato_engine.kernels.cpu.simd.scalar import fused
from legato_engine.kernels.cpu.simd.vector import address, load, multiply_add, zero


@njit(cache=True)
def dot(a, b):
    """The product of contiguous float32 [size]: 16 sums of every 16th, then halves of them, then the rest."""
    left, right, sums = address(a), address(b), zero()
    for _ in range(a.shape[0] // 16):
        sums = multiply_add(load(left), load(right), sums)
        left += 64
        right += 64
    total = across(sums)
    for i in range(a.shape[0] // 16 * 16, a.shape[0]):
        total = fused(a[i], b[i], total)
    return total
