"""Products of AMX in four tiles of sums, 32 rows × 32 columns, or in two, 16 × 32. Memory is given by address.

Rows are 16 for each of two addresses, `stride` bytes apart; columns are 16 for each of two, in pairs as products take
them, without gaps.
"""

from numba import njit

from legato_engine.kernels.cpu.simd.vector import (
    tile_dot_0,
    tile_dot_1,
    tile_dot_2,
    tile_dot_3,
    tile_load_0,
    tile_load_1,
    tile_load_2,
    tile_load_3,
    tile_load_4,
    tile_load_5,
    tile_load_6,
    tile_load_7,
    tile_store_0,
    tile_store_1,
    tile_store_2,
    tile_store_3,
    tile_zero_0,
    tile_zero_1,
    tile_zero_2,
    tile_zero_3,
)


@njit(cache=True)
def zero_16():
    """The sums of 16 rows."""
    tile_zero_0()
    tile_zero_1()


@njit(cache=True)
def zero_32():
    zero_16()
    tile_zero_2()
    tile_zero_3()


@njit(cache=True)
def load_16(at, stride):
    """The sums of 16 rows, from float32."""
    tile_load_0(at, stride)
    tile_load_1(at + 64, stride)


@njit(cache=True)
def load_32(at, stride):
    load_16(at, stride)
    tile_load_2(at + 16 * stride, stride)
    tile_load_3(at + 16 * stride + 64, stride)


@njit(cache=True)
def add_16(rows, stride, first, second):
    """Adds the products of 16 rows, and columns `first` and `second`."""
    tile_load_4(rows, stride)
    tile_load_6(first, 64)
    tile_dot_0()
    tile_load_7(second, 64)
    tile_dot_1()


@njit(cache=True)
def add_32(rows, more_rows, stride, first, second):
    add_16(rows, stride, first, second)
    tile_load_5(more_rows, stride)
    tile_dot_2()
    tile_dot_3()


@njit(cache=True)
def store_16(at, stride):
    """The sums of 16 rows, to float32."""
    tile_store_0(at, stride)
    tile_store_1(at + 64, stride)


@njit(cache=True)
def store_32(at, stride):
    store_16(at, stride)
    tile_store_2(at + 16 * stride, stride)
    tile_store_3(at + 16 * stride + 64, stride)
