"""Linear layers from 4-bit codes on any processor. See `reference/linear.md`.

Only the storage of weights is small: their values are the file's, and all sums are float32. x is float32, or bfloat16
as uint16. Sizes: out is a multiple of 16, in of 32.
"""

import numpy as np
from numba import njit, prange

from legato_engine.kernels.cpu.linear.packing import COLUMNS
from legato_engine.kernels.cpu.linear.scales import minimum_of, of_panel, scale_of
from legato_engine.kernels.cpu.simd.lanes import masked_floats, nibble_floats, top_floats
from legato_engine.kernels.cpu.simd.scalar import RELAXED, read
from legato_engine.kernels.cpu.simd.vector import (
    address,
    broadcast,
    load,
    multiply_add,
    store,
    store_eight,
    store_four,
    zero,
)

# What x is multiplied with, so that a code need not be shifted down: it stands at bit 4i of its word, the last alone
# would touch the sign and is shifted.
PLACES = np.array([2.0 ** (-4 * i) for i in range(7)] + [1.0], np.float32)


@njit(cache=True, fastmath=RELAXED)
def _spread(x, scaled, sums):
    """x times PLACES, and the sum of each group."""
    for group in range(sums.shape[0]):
        total = np.float32(0)
        for word in range(group * 4, group * 4 + 4):
            for i in range(8):
                value = read(x[word * 8 + i])
                scaled[word * 8 + i] = value * PLACES[i]
                total += value
        sums[group] = total


@njit(cache=True)
def _codes4_1(x, sums, codes, scales, groups, out):
    """16 outputs of one row; x, codes, sums and out are addresses."""
    total = zero()
    for group in range(groups):
        even = zero()
        odd = zero()
        for w in range(4):
            words = load(codes + w * 64)
            at = x + w * 32
            even = multiply_add(masked_floats(words, 0xF), broadcast(at), even)
            odd = multiply_add(masked_floats(words, 0xF0), broadcast(at + 4), odd)
            even = multiply_add(masked_floats(words, 0xF00), broadcast(at + 8), even)
            odd = multiply_add(masked_floats(words, 0xF000), broadcast(at + 12), odd)
            even = multiply_add(masked_floats(words, 0xF0000), broadcast(at + 16), even)
            odd = multiply_add(masked_floats(words, 0xF00000), broadcast(at + 20), odd)
            even = multiply_add(masked_floats(words, 0xF000000), broadcast(at + 24), even)
            odd = multiply_add(top_floats(words), broadcast(at + 28), odd)
        weight_scale, minimum = scale_of(scales, group), minimum_of(scales, group)
        total = multiply_add(even, weight_scale, total)
        total = multiply_add(odd, weight_scale, total)
        total = multiply_add(broadcast(sums), minimum, total)
        codes += 256
        x += 128
        sums += 4
    store(out, total)


@njit(cache=True)
def _codes4_4(x, stride, sums, sums_stride, codes, scales, groups, out, out_stride):
    """16 outputs of four rows."""
    t0, t1, t2, t3 = zero(), zero(), zero(), zero()
    for group in range(groups):
        a0, a1, a2, a3 = zero(), zero(), zero(), zero()
        for w in range(4):
            words = load(codes + w * 64)
            for i in range(8):
                code = top_floats(words) if i == 7 else masked_floats(words, 0xF << (4 * i))
                at = x + w * 32 + i * 4
                a0 = multiply_add(code, broadcast(at), a0)
                a1 = multiply_add(code, broadcast(at + stride), a1)
                a2 = multiply_add(code, broadcast(at + 2 * stride), a2)
                a3 = multiply_add(code, broadcast(at + 3 * stride), a3)
        weight_scale, minimum = scale_of(scales, group), minimum_of(scales, group)
        t0 = multiply_add(broadcast(sums), minimum, multiply_add(a0, weight_scale, t0))
        t1 = multiply_add(broadcast(sums + sums_stride), minimum, multiply_add(a1, weight_scale, t1))
        t2 = multiply_add(broadcast(sums + 2 * sums_stride), minimum, multiply_add(a2, weight_scale, t2))
        t3 = multiply_add(broadcast(sums + 3 * sums_stride), minimum, multiply_add(a3, weight_scale, t3))
        codes += 256
        x += 128
        sums += 4
    store_four((t0, t1, t2, t3), out, out_stride)


@njit(cache=True)
def _codes4_8(x, stride, sums, sums_stride, codes, scales, groups, out, out_stride):
    """16 outputs of eight rows: each code is unpacked once for all."""
    t0, t1, t2, t3, t4, t5, t6, t7 = zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()
    for group in range(groups):
        a0, a1, a2, a3, a4, a5, a6, a7 = zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()
        for w in range(4):
            words = load(codes + w * 64)
            for i in range(8):
                code = top_floats(words) if i == 7 else masked_floats(words, 0xF << (4 * i))
                at = x + w * 32 + i * 4
                lower = at + 4 * stride
                a0 = multiply_add(code, broadcast(at), a0)
                a1 = multiply_add(code, broadcast(at + stride), a1)
                a2 = multiply_add(code, broadcast(at + 2 * stride), a2)
                a3 = multiply_add(code, broadcast(at + 3 * stride), a3)
                a4 = multiply_add(code, broadcast(lower), a4)
                a5 = multiply_add(code, broadcast(lower + stride), a5)
                a6 = multiply_add(code, broadcast(lower + 2 * stride), a6)
                a7 = multiply_add(code, broadcast(lower + 3 * stride), a7)
        weight_scale, minimum = scale_of(scales, group), minimum_of(scales, group)
        half = sums + 4 * sums_stride
        t0 = multiply_add(broadcast(sums), minimum, multiply_add(a0, weight_scale, t0))
        t1 = multiply_add(broadcast(sums + sums_stride), minimum, multiply_add(a1, weight_scale, t1))
        t2 = multiply_add(broadcast(sums + 2 * sums_stride), minimum, multiply_add(a2, weight_scale, t2))
        t3 = multiply_add(broadcast(sums + 3 * sums_stride), minimum, multiply_add(a3, weight_scale, t3))
        t4 = multiply_add(broadcast(half), minimum, multiply_add(a4, weight_scale, t4))
        t5 = multiply_add(broadcast(half + sums_stride), minimum, multiply_add(a5, weight_scale, t5))
        t6 = multiply_add(broadcast(half + 2 * sums_stride), minimum, multiply_add(a6, weight_scale, t6))
        t7 = multiply_add(broadcast(half + 3 * sums_stride), minimum, multiply_add(a7, weight_scale, t7))
        codes += 256
        x += 128
        sums += 4
    store_eight((t0, t1, t2, t3, t4, t5, t6, t7), out, out_stride)


@njit(cache=True, parallel=True, nogil=True)
def multiply4(x, rows, codes, values, factors, minima, least_factors, out, first):
    """Few rows times 4-bit weights: columns `first` and on of out."""
    groups = values.shape[1]
    scales = values, factors, minima, least_factors
    scaled, sums = np.empty((rows, x.shape[1]), np.float32), np.empty((rows, groups), np.float32)
    for row in range(rows):
        _spread(x[row], scaled[row], sums[row])
    stride, sums_stride, out_stride = scaled.shape[1] * 4, groups * 4, out.shape[1] * 4
    for panel in prange(codes.shape[0]):
        parts = of_panel(scales, panel)
        code = address(codes) + panel * groups * 256
        at, sum_at, to = address(scaled), address(sums), address(out) + first * 4 + panel * 64
        for row in range(0, rows - 7, 8):
            _codes4_8(
                at + row * stride, stride, sum_at + row * sums_stride, sums_stride, code, parts, groups,
                to + row * out_stride, out_stride,
            )  # fmt: skip
        for row in range(rows // 8 * 8, rows - 3, 4):
            _codes4_4(
                at + row * stride, stride, sum_at + row * sums_stride, sums_stride, code, parts, groups,
                to + row * out_stride, out_stride,
            )  # fmt: skip
        for row in range(rows // 4 * 4, rows):
            _codes4_1(at + row * stride, sum_at + row * sums_stride, code, parts, groups, to + row * out_stride)


@njit(cache=True, parallel=True, nogil=True)
def dequantize4(codes, values, factors, minima, least_factors, first, out):
    """The weights of panels `first` and on, transposed: float32 [in, 16 · panels]."""
    groups = values.shape[1]
    scales = values, factors, minima, least_factors
    stride = out.shape[1] * 4
    for group in prange(groups):  # not panel by panel: rows of `out` stay in the cache until they are complete
        for index in range(out.shape[1] // COLUMNS):
            parts = of_panel(scales, first + index)
            weight_scale, minimum = scale_of(parts, group), minimum_of(parts, group)
            code = address(codes) + ((first + index) * groups + group) * 256
            to = address(out) + group * 32 * stride + index * 64
            for w in range(4):
                words = load(code + w * 64)
                for i in range(8):
                    store(to + (w * 8 + i) * stride, multiply_add(nibble_floats(words, 4 * i), weight_scale, minimum))
