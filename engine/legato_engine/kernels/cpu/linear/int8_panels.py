"""Weights for products of bytes with many rows: 48 outputs, unpacked into memory that stays in a core's cache while all
rows pass.
"""

import numpy as np
from numba import njit

from legato_engine.kernels.cpu.linear.scales import of_panel, scale_and_minimum
from legato_engine.kernels.cpu.simd.lanes import BIAS, load_quads, nibbles, times
from legato_engine.kernels.cpu.simd.vector import address, load, store

ROWS = 8  # of a block
PANELS = 3  # of 16 outputs
SCALES = 3 * PANELS * 64  # bytes of a group's: what a code is worth, BIAS codes less than nothing, and a code of 0


@njit(cache=True)
def room(groups):
    """A thread's memory, at multiples of 64 bytes: scales float32 [groups, 3, 48], codes uint8
    [groups, 8, 48, 4], four inputs of an output.
    """
    scales, codes = groups * SCALES // 4, groups * PANELS * 128
    memory = np.empty(scales + codes + 16, np.float32)
    memory = memory[-address(memory) % 64 // 4 :]
    return memory[:scales], memory[scales:]


@njit(cache=True)
def unpack(codes, scales, first, count, summed, code, scale):
    """The panels `first` and on, into a `room`."""
    groups, four = scales[0].shape[1], codes.itemsize == 4
    for index in range(count):
        at, to = address(codes) + (first + index) * groups * (256 if four else 512), address(code) + index * 64
        if four:
            _unpack4(at, groups, to)
        else:
            _unpack8(at, groups, to)
        _unpack_scales(of_panel(scales, first + index), groups, four, summed, address(scale) + index * 64)


@njit(cache=True)
def _unpack4(codes, groups, to):
    for group in range(groups):
        for word in range(4):
            words, at = load(codes + (group * 4 + word) * 64), to + (group * 4 + word) * 2 * PANELS * 64
            store(at, nibbles(words, 0))
            store(at + PANELS * 64, nibbles(words, 4))


@njit(cache=True)
def _unpack8(codes, groups, to):
    for quad in range(8 * groups):
        store(to + quad * PANELS * 64, load_quads(codes + quad * 64))


@njit(cache=True)
def _unpack_scales(scales, groups, four, summed, to):
    for group in range(groups):
        weight_scale, minimum = scale_and_minimum(scales, group, four, summed)
        store(to, weight_scale)
        store(to + PANELS * 64, times(weight_scale, np.float32(-BIAS)))  # exact: a scale has at most 19 bits, BIAS two
        store(to + 2 * PANELS * 64, minimum)
        to += SCALES
