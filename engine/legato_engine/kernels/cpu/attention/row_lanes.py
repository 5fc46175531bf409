"""Functions of registers for both kernels of decoding rows, for four heads that share a KV head. Memory is given by
address, laid out as in `row`.
"""

from numba import njit

from legato_engine.kernels.cpu.simd.lanes import multiply, prefetch, sum_of_quarters, sums_of_quarters
from legato_engine.kernels.cpu.simd.vector import broadcast, load, store, store_four, zero


@njit(cache=True)
def ask_for(at, size):
    """Prefetches `size` bytes."""
    for line in range(0, size, 64):
        prefetch(at + line)


@njit(cache=True)
def no_sums():
    """Four registers."""
    return zero(), zero(), zero(), zero()


@njit(cache=True)
def store_scores(at, heads, a, b, c, d):
    """Reduces the sums of four positions for each head to four scores. Without a fourth head, its scores are 0."""
    of_d = zero()
    if heads > 3:
        of_d = sums_of_quarters(d[0], d[1], d[2], d[3])
    of_a, of_b = sums_of_quarters(a[0], a[1], a[2], a[3]), sums_of_quarters(b[0], b[1], b[2], b[3])
    store(at, sum_of_quarters(of_a, of_b, sums_of_quarters(c[0], c[1], c[2], c[3]), of_d))


@njit(cache=True)
def scaled(weighted, width, scale):
    """32 dimensions of each head, `width` bytes apart, times its scale: two registers each."""
    factor = broadcast(scale)
    a = multiply(load(weighted), factor), multiply(load(weighted + 64), factor)
    weighted, factor = weighted + width, broadcast(scale + 16)
    b = multiply(load(weighted), factor), multiply(load(weighted + 64), factor)
    weighted, factor = weighted + width, broadcast(scale + 32)
    c = multiply(load(weighted), factor), multiply(load(weighted + 64), factor)
    weighted, factor = weighted + width, broadcast(scale + 48)
    return a, b, c, (multiply(load(weighted), factor), multiply(load(weighted + 64), factor))


@njit(cache=True)
def store_weighted(weighted, width, a, b, c, d):
    """Stores the registers of `scaled` after products were added."""
    store_four((a[0], b[0], c[0], d[0]), weighted, width)
    store_four((a[1], b[1], c[1], d[1]), weighted + 64, width)
