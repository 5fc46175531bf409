"""Linear layers in bfloat16 on a processor with AMX: weights as tiles. See `reference/linear.md`.

Activations are bfloat16 (as uint16) [rows, in], results float32 [rows, out]; sums are float32.
"""

import numpy as np
import torch
from numba import njit, prange

from legato_engine.kernels.cpu.simd.lanes import prefetch
from legato_engine.kernels.cpu.simd.tiles import add_16, add_32, store_16, store_32, zero_16, zero_32
from legato_engine.kernels.cpu.simd.vector import (
    add,
    address,
    broadcast,
    dot_bf16,
    load,
    store,
    tile_configure,
    tile_release,
    zero,
)

COLUMNS, INPUTS = 16, 32  # of a weight tile
CACHED = 1 << 20  # bytes of weights: half of the private cache of a core with AMX
AHEAD = 2048  # bytes
SHAPES = np.zeros(64, np.uint8)
SHAPES[0] = 1
SHAPES[16:32:2] = 64  # bytes in a row
SHAPES[48:56] = 16  # rows


def pack_tiles(weight: torch.Tensor) -> np.ndarray:
    """[out, in] as bfloat16 tiles: uint16 [out/16, in/32, 16 pairs of inputs, 16 outputs, 2]."""
    outputs, inputs = weight.shape
    tiles = weight.bfloat16().view(torch.int16).view(outputs // COLUMNS, COLUMNS, inputs // INPUTS, 16, 2)
    return tiles.permute(0, 2, 3, 1, 4).contiguous().numpy().view(np.uint16)


@njit(cache=True, parallel=True, nogil=True)
def narrow(x, rows, tiles, out):
    """Few rows times bfloat16 tiles."""
    inputs = x.shape[1]
    for panel in prange(tiles.shape[0]):
        weight = address(tiles) + panel * inputs * 32
        for row in range(rows):
            at = address(x) + row * inputs * 2
            even = zero()
            odd = zero()
            for pair in range(0, inputs // 2, 2):
                even = dot_bf16(even, load(weight + pair * 64), broadcast(at + pair * 4))
                odd = dot_bf16(odd, load(weight + pair * 64 + 64), broadcast(at + pair * 4 + 4))
            store(address(out) + (row * out.shape[1] + panel * 16) * 4, add(even, odd))


@njit(cache=True)
def _tiles_32_by_32(x, weight, inputs, stride, out, out_stride):
    """32 rows times two panels; all arguments but sizes are addresses."""
    zero_32()
    for group in range(inputs // 32):
        at, first = x + group * 64, weight + group * 1024
        second = first + inputs * 32
        for line in range(AHEAD, AHEAD + 1024, 64):
            prefetch(first + line)
            prefetch(second + line)
        add_32(at, at + 16 * stride, stride, first, second)
    store_32(out, out_stride)


@njit(cache=True)
def _tiles_16_by_32(x, weight, inputs, stride, out, out_stride):
    """16 rows times two panels."""
    zero_16()
    for group in range(inputs // 32):
        columns = weight + group * 1024
        add_16(x + group * 64, stride, columns, columns + inputs * 32)
    store_16(out, out_stride)


@njit(cache=True, parallel=True, nogil=True)
def wide(x, rows, tiles, shapes, threads, out):
    """Many rows times bfloat16 tiles. x and out have room for `rows` rounded up to 16; `shapes` is SHAPES.

    Panels come in pairs: out is a multiple of 32. Each thread has as many of them, in groups that fit its core's cache,
    by which all rows pass. `threads` is an argument because numba caches no function that calls `get_num_threads`.
    """
    inputs, pairs = x.shape[1], tiles.shape[0] // 2
    stride, out_stride = inputs * 2, out.shape[1] * 4
    size = max(1, CACHED // (inputs * 64))
    for thread in prange(threads):
        tile_configure(address(shapes))
        begin, end = pairs * thread // threads, pairs * (thread + 1) // threads
        for group in range(begin, end, size):
            for row in range(0, rows, 32):
                at, to = address(x) + row * stride, address(out) + row * out_stride
                for pair in range(group, min(group + size, end)):
                    weight = address(tiles) + pair * inputs * 64
                    if rows - row > 16:
                        _tiles_32_by_32(at, weight, inputs, stride, to + pair * 128, out_stride)
                    else:
                        _tiles_16_by_32(at, weight, inputs, stride, to + pair * 128, out_stride)
        tile_release()
