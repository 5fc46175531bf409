"""Linear layers from 8-bit codes on any processor. See `reference/linear.md`.

x is float32, or bfloat16 as uint16; all sums are float32. Sizes: out is a multiple of 16, in of 32. A group is 16 or
32 inputs. Minima are of no groups where weights have none.
"""

import numpy as np
from numba import njit, prange

from legato_engine.kernels.cpu.linear.packing import COLUMNS
from legato_engine.kernels.cpu.linear.scales import minimum_of, of_panel, scale_of
from legato_engine.kernels.cpu.simd.lanes import load_bytes
from legato_engine.kernels.cpu.simd.scalar import RELAXED, read
from legato_engine.kernels.cpu.simd.vector import address, broadcast, multiply_add, store, zero


@njit(cache=True, fastmath=RELAXED)
def _widen(x, wide, sums):
    """x in float32, and the sum of each group."""
    size = x.shape[0] // sums.shape[0]
    for group in range(sums.shape[0]):
        total = np.float32(0)
        for i in range(group * size, group * size + size):
            value = read(x[i])
            wide[i] = value
            total += value
        sums[group] = total


@njit(cache=True)
def _codes8_1(x, sums, codes, scales, groups, summed, size, out):
    """16 outputs of one row; x, sums, codes and out are addresses."""
    total = zero()
    for group in range(groups):
        even = zero()
        odd = zero()
        for half in range(0, size, 16):
            for i in range(half, half + 16, 2):
                even = multiply_add(load_bytes(codes + i * 16), broadcast(x + i * 4), even)
                odd = multiply_add(load_bytes(codes + i * 16 + 16), broadcast(x + i * 4 + 4), odd)
        weight_scale = scale_of(scales, group)
        total = multiply_add(odd, weight_scale, multiply_add(even, weight_scale, total))
        if summed:
            minimum = minimum_of(scales, group)
            total = multiply_add(broadcast(sums + group * 4), minimum, total)
        codes += size * 16
        x += size * 4
    store(out, total)


@njit(cache=True)
def _codes8_4(x, stride, sums, sums_stride, codes, scales, groups, summed, size, out, out_stride):
    """16 outputs of four rows."""
    t0, t1, t2, t3 = zero(), zero(), zero(), zero()
    for group in range(groups):
        a0, a1, a2, a3 = zero(), zero(), zero(), zero()
        for i in range(size):
            code = load_bytes(codes + i * 16)
            at = x + i * 4
            a0 = multiply_add(code, broadcast(at), a0)
            a1 = multiply_add(code, broadcast(at + stride), a1)
            a2 = multiply_add(code, broadcast(at + 2 * stride), a2)
            a3 = multiply_add(code, broadcast(at + 3 * stride), a3)
        weight_scale = scale_of(scales, group)
        t0, t1 = multiply_add(a0, weight_scale, t0), multiply_add(a1, weight_scale, t1)
        t2, t3 = multiply_add(a2, weight_scale, t2), multiply_add(a3, weight_scale, t3)
        if summed:
            minimum = minimum_of(scales, group)
            at = sums + group * 4
            t0 = multiply_add(broadcast(at), minimum, t0)
            t1 = multiply_add(broadcast(at + sums_stride), minimum, t1)
            t2 = multiply_add(broadcast(at + 2 * sums_stride), minimum, t2)
            t3 = multiply_add(broadcast(at + 3 * sums_stride), minimum, t3)
        codes += size * 16
        x += size * 4
    store(out, t0)
    store(out + out_stride, t1)
    store(out + 2 * out_stride, t2)
    store(out + 3 * out_stride, t3)


@njit(cache=True, parallel=True, nogil=True)
def multiply8(x, rows, codes, values, factors, minima, least_factors, out, first):
    """Few rows times 8-bit weights: columns `first` and on of out."""
    groups = values.shape[1]
    scales = values, factors, minima, least_factors
    size, summed = x.shape[1] // groups, minima.shape[1]
    floats, sums = np.empty((rows, x.shape[1]), np.float32), np.empty((rows, groups), np.float32)
    for row in range(rows):
        _widen(x[row], floats[row], sums[row])
    stride, sums_stride, out_stride = floats.shape[1] * 4, groups * 4, out.shape[1] * 4
    for panel in prange(codes.shape[0]):
        parts = of_panel(scales, panel)
        code = address(codes) + panel * groups * size * 16
        at, sum_at, to = address(floats), address(sums), address(out) + first * 4 + panel * 64
        for row in range(0, rows - 3, 4):
            _codes8_4(
                at + row * stride, stride, sum_at + row * sums_stride, sums_stride, code, parts, groups, summed, size,
                to + row * out_stride, out_stride,
            )  # fmt: skip
        for row in range(rows // 4 * 4, rows):
            _codes8_1(
                at + row * stride, sum_at + row * sums_stride, code, parts, groups, summed, size, to + row * out_stride
            )


@njit(cache=True, parallel=True, nogil=True)
def dequantize8(codes, values, factors, minima, least_factors, first, out):
    """The weights of panels `first` and on, transposed: float32 [in, 16 · panels]."""
    groups, inputs = values.shape[1], codes.shape[1]
    scales = values, factors, minima, least_factors
    size, stride = inputs // groups, out.shape[1] * 4
    for group in prange(groups):  # not panel by panel: rows of `out` stay in the cache until they are complete
        for index in range(out.shape[1] // COLUMNS):
            panel = first + index
            parts = of_panel(scales, panel)
            weight_scale = scale_of(parts, group)
            minimum = minimum_of(parts, group) if minima.shape[1] else zero()
            code = address(codes) + (panel * inputs + group * size) * 16
            to = address(out) + group * size * stride + index * 64
            for i in range(size):
                store(to + i * stride, multiply_add(load_bytes(code + i * 16), weight_scale, minimum))
