"""Linear layers on a processor with bfloat16 instructions: 4-bit weights for few rows, AMX tiles for many. See README.

Activations are bfloat16 (as uint16) [rows, in], results float32 [rows, out]; sums are float32.
"""

import numpy as np
import torch
from numba import njit, prange

from legato_engine.kernels.scalar import narrowed, widened
from legato_engine.kernels.vector import (
    add,
    broadcast,
    dot_bf16,
    load,
    load_halves,
    lookup_words,
    multiply_add,
    shift_words,
    store,
    tile_configure,
    tile_dot_0,
    tile_dot_1,
    tile_dot_2,
    tile_dot_3,
    tile_load_4,
    tile_load_5,
    tile_load_6,
    tile_load_7,
    tile_release,
    tile_store_0,
    tile_store_1,
    tile_store_2,
    tile_store_3,
    tile_zero_0,
    tile_zero_1,
    tile_zero_2,
    tile_zero_3,
    zero,
)

COLUMNS, INPUTS = 16, 32  # of a weight tile
# Codes 0 … 15 as bfloat16, twice: an index of 5 bits may have a bit of its neighbour on top.
CODES = torch.arange(16).bfloat16().view(torch.int16).repeat(2).numpy().view(np.uint16)
SHAPES = np.zeros(64, np.uint8)
SHAPES[0] = 1
SHAPES[16:32:2] = 64  # bytes in a row
SHAPES[48:56] = 16  # rows


def pack_tiles(weight: torch.Tensor) -> np.ndarray:
    """[out, in] as bfloat16 tiles: uint16 [out/16, in/32, 16 pairs of inputs, 16 outputs, 2]."""
    outputs, inputs = weight.shape
    tiles = weight.bfloat16().view(torch.int16).view(outputs // COLUMNS, COLUMNS, inputs // INPUTS, 16, 2)
    return tiles.permute(0, 2, 3, 1, 4).contiguous().numpy().view(np.uint16)


def pack_codes(codes: torch.Tensor) -> np.ndarray:
    """4-bit codes [out, in] as uint16 [out/16, in/32, 4, 32]: word 2n + h of register z holds, for output n, inputs
    8z + h, 8z + h + 2, … + 6, lowest bits first.
    """
    outputs, inputs = codes.shape
    split = codes.to(torch.int32).view(outputs // COLUMNS, COLUMNS, inputs // INPUTS, 4, 4, 2)
    shifted = split * (1 << (4 * torch.arange(4)))[:, None]
    words = shifted.sum(4).permute(0, 2, 3, 1, 4)  # [out/16, in/32, 4, 16, 2]
    return words.reshape(outputs // COLUMNS, inputs // INPUTS, 4, 32).numpy().astype(np.uint16)


def pack_scales(scales: torch.Tensor) -> np.ndarray:
    """[out, in/32] as float16 bits, uint16 [out/16, in/32, 16]."""
    outputs, groups = scales.shape
    halves = scales.half().view(torch.int16).view(outputs // COLUMNS, COLUMNS, groups).transpose(1, 2)
    return halves.contiguous().numpy().view(np.uint16)


@njit(cache=True, fastmath=True)
def _activation(x, out, sums):
    for group in range(sums.shape[0]):
        total = np.float32(0)
        for i in range(group * 32, group * 32 + 32):
            out[i] = narrowed(x[i])
            total += widened(out[i])
        sums[group] = total


@njit(cache=True)
def activations(x, rows, out, sums):
    """float32 [rows, in] → bfloat16 out, and sums [rows, in/32] of each group of 32 of it."""
    for row in range(rows):
        _activation(x[row], out[row], sums[row])


@njit(cache=True)
def _codes_panel(x, row, sums, codes, scales, minima, panel, table, out):
    """16 outputs of one row."""
    total = zero()
    groups = codes.shape[1]
    at = x.ctypes.data + row * x.shape[1] * 2
    code = codes.ctypes.data + panel * groups * 256
    scale = scales.ctypes.data + panel * groups * 32
    minimum = minima.ctypes.data + panel * groups * 32
    sum_at = sums.ctypes.data + row * groups * 4
    for group in range(groups):
        even = zero()
        odd = zero()
        for z in range(4):
            words = load(code + group * 256 + z * 64)
            pair = at + group * 64 + z * 16
            even = dot_bf16(even, lookup_words(table, words), broadcast(pair))
            odd = dot_bf16(odd, lookup_words(table, shift_words(words, 4)), broadcast(pair + 4))
            even = dot_bf16(even, lookup_words(table, shift_words(words, 8)), broadcast(pair + 8))
            odd = dot_bf16(odd, lookup_words(table, shift_words(words, 12)), broadcast(pair + 12))
        by = load_halves(scale + group * 32)
        total = multiply_add(even, by, total)
        total = multiply_add(odd, by, total)
        total = multiply_add(broadcast(sum_at + group * 4), load_halves(minimum + group * 32), total)
    store(out.ctypes.data + (row * out.shape[1] + panel * 16) * 4, total)


@njit(cache=True, parallel=True)
def packed4(x, sums, rows, codes, scales, minima, table, out):
    """Few rows times 4-bit weights. `sums` float32 [rows, in/32]: of each group of x. `table` is CODES."""
    for panel in prange(codes.shape[0]):
        bits = load(table.ctypes.data)
        for row in range(rows):
            _codes_panel(x, row, sums, codes, scales, minima, panel, bits, out)


@njit(cache=True, parallel=True)
def narrow(x, rows, tiles, out):
    """Few rows times bfloat16 tiles."""
    inputs = x.shape[1]
    for panel in prange(tiles.shape[0]):
        weight = tiles.ctypes.data + panel * inputs * 32
        for row in range(rows):
            at = x.ctypes.data + row * inputs * 2
            even = zero()
            odd = zero()
            for pair in range(0, inputs // 2, 2):
                even = dot_bf16(even, load(weight + pair * 64), broadcast(at + pair * 4))
                odd = dot_bf16(odd, load(weight + pair * 64 + 64), broadcast(at + pair * 4 + 4))
            store(out.ctypes.data + (row * out.shape[1] + panel * 16) * 4, add(even, odd))


@njit(cache=True)
def _tiles_32_by_32(x, weight, inputs, stride, out, out_stride):
    """32 rows times two panels; all arguments but sizes are addresses."""
    tile_zero_0()
    tile_zero_1()
    tile_zero_2()
    tile_zero_3()
    for group in range(inputs // 32):
        tile_load_4(x + group * 64, stride)
        tile_load_6(weight + group * 1024, 64)
        tile_dot_0()
        tile_load_7(weight + inputs * 32 + group * 1024, 64)
        tile_dot_1()
        tile_load_5(x + 16 * stride + group * 64, stride)
        tile_dot_2()
        tile_dot_3()
    tile_store_0(out, out_stride)
    tile_store_1(out + 64, out_stride)
    tile_store_2(out + 16 * out_stride, out_stride)
    tile_store_3(out + 16 * out_stride + 64, out_stride)


@njit(cache=True)
def _tiles_16_by_32(x, weight, inputs, stride, out, out_stride):
    """16 rows times two panels."""
    tile_zero_0()
    tile_zero_1()
    for group in range(inputs // 32):
        tile_load_4(x + group * 64, stride)
        tile_load_6(weight + group * 1024, 64)
        tile_dot_0()
        tile_load_7(weight + inputs * 32 + group * 1024, 64)
        tile_dot_1()
    tile_store_0(out, out_stride)
    tile_store_1(out + 64, out_stride)


@njit(cache=True, parallel=True)
def wide(x, rows, tiles, shapes, out):
    """Many rows times bfloat16 tiles. x and out have room for `rows` rounded up to 16; `shapes` is SHAPES.

    Panels come in pairs: out is a multiple of 32.
    """
    inputs = x.shape[1]
    stride = inputs * 2
    out_stride = out.shape[1] * 4
    for pair in prange(tiles.shape[0] // 2):
        tile_configure(shapes.ctypes.data)
        weight = tiles.ctypes.data + pair * inputs * 64
        to = out.ctypes.data + pair * 128
        for row in range(0, rows - 16, 32):
            _tiles_32_by_32(x.ctypes.data + row * stride, weight, inputs, stride, to + row * out_stride, out_stride)
        if (rows - 1) % 32 < 16:
            row = (rows - 1) // 32 * 32
            _tiles_16_by_32(x.ctypes.data + row * stride, weight, inputs, stride, to + row * out_stride, out_stride)
        tile_release()
