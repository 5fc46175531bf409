"""Linear layers from codes and 8-bit activations: codes of 4 and 8 bits on processors with AVX-512 VNNI, of 4 bits on
those with AVX2. See `reference/linear.md`.

Each row of x is rounded to 8 bits, with a scale for each group of 32 inputs, as in llama.cpp (its type Q8_1). A
group's sum of products is an exact integer, all other sums are float32; weights are the file's. A row's
result depends on no other row. Sizes: out is a multiple of 16, in of 32, and a weight's group is 32 inputs, too.
"""

import numpy as np
from numba import njit, prange

from legato_engine.kernels.cpu.atomics import fetch_add
from legato_engine.kernels.cpu.linear.int8_panels import PANELS, ROWS, room, unpack
from legato_engine.kernels.cpu.linear.int8_products import eight_rows, half_block, one_row
from legato_engine.kernels.cpu.linear.scales import of_panel
from legato_engine.kernels.cpu.simd.lanes import (
    evens_first,
    largest,
    prefetch_to_write,
    put_float,
    rounded,
    store_bytes,
    sum_of,
    times,
)
from legato_engine.kernels.cpu.simd.vector import address, load

GROUP = 32
FEW = 4  # blocks of rows: for fewer, codes are unpacked for each
LEAST = np.float32(1e-30)  # a group of smaller numbers is zeros


@njit(cache=True, error_model="numpy")
def _round(x, groups, four, width, codes, parts):
    """One row: x ≈ codes · scale in each group. All are addresses: x float32 [groups, 32]; codes int8
    [groups, width, 32], in the order in which a weight's are unpacked; parts float32 [groups, 2, width]: the scale, and
    scale · the sum of the codes.
    """
    for _ in range(groups):
        left, right = load(x), load(x + 64)
        most = largest(left, right)  # an infinity or NaN makes the scale one, and so all outputs
        factor = np.float32(127) / most if most > LEAST else np.float32(0)
        left, right = rounded(times(left, factor)), rounded(times(right, factor))
        scale = most * np.float32(1 / 127)
        put_float(parts, scale)
        put_float(parts + 4 * width, scale * np.float32(sum_of(left, right)))
        store_bytes(codes, evens_first(left) if four else left)
        store_bytes(codes + 16, evens_first(right) if four else right)
        x += 128
        codes += 32 * width
        parts += 8 * width


@njit(cache=True)
def round_block(x, rows, block, four, codes, parts):
    """The rows of a block: codes [groups, width, 32], parts [groups, 2, width]."""
    groups, width = codes.shape[:2]
    for lane in range(min(width, rows - block * width)):
        row = address(x) + (block * width + lane) * x.shape[1] * 4
        _round(row, groups, four, width, address(codes) + lane * 32, address(parts) + lane * 4)


@njit(cache=True, parallel=True, nogil=True)
def round_rows(x, rows, groups, width, four):
    """x of all rows by blocks of `width`: codes int8 [blocks, groups, width, 32], parts [blocks, groups, 2, width]."""
    blocks = (rows + width - 1) // width
    whole = np.empty((blocks, groups, width, GROUP), np.int8)
    parts = np.empty((blocks, groups, 2, width), np.float32)
    if blocks > 1:
        for block in prange(blocks):
            round_block(x, rows, block, four, whole[block], parts[block])
    else:  # not worth waking threads for
        round_block(x, rows, 0, four, whole[0], parts[0])
    return whole, parts


@njit(cache=True, parallel=True, nogil=True)
def multiply(family, x, rows, codes, values, factors, minima, least_factors, out, first, threads):
    """x float32 [room, in] times a weight of 4-bit or 8-bit codes; out float32 [room, …], from column `first` on, where
    room is a multiple of 8: rows beyond `rows` are overwritten. `family` is VNNI or AVX2 of `tags`.
    """
    four, groups, summed = codes.itemsize == 4, values.shape[1], minima.shape[1] > 0
    scales = values, factors, minima, least_factors
    whole, parts = round_rows(x, rows, groups, 1 if rows == 1 else ROWS, four)
    blocks = len(whole)
    if blocks < FEW:
        for panel in prange(codes.shape[0]):
            code, of = address(codes) + panel * groups * (256 if four else 512), of_panel(scales, panel)
            for block in range(blocks):
                at, part, left = address(whole[block]), address(parts[block]), rows - block * ROWS
                to = address(out) + block * ROWS * out.shape[1] * 4 + first * 4 + panel * 64
                if rows == 1:
                    one_row(family, at, part, code, four, of, summed, groups, to)
                else:
                    eight_rows(family, at, part, code, four, of, summed, groups, to, out.shape[1] * 4, left)
    else:
        taken = np.zeros(1, np.int64)
        for _ in prange(threads):
            _multiply_tiles(family, address(taken), whole, parts, codes, scales, summed, out, first)


@njit(cache=True)
def _multiply_tiles(family, taken, whole, parts, codes, scales, summed, out, first):
    """Takes PANELS panels after the other, as long as other threads leave some."""
    blocks, groups, panels = len(whole), whole.shape[1], len(codes)
    scale, code = room(groups)
    stride = out.shape[1] * 4
    panel = fetch_add(taken, PANELS)
    while panel < panels:
        count = min(PANELS, panels - panel)
        unpack(codes, scales, panel, count, summed, code, scale)
        for block in range(blocks):
            to = address(out) + block * ROWS * stride + first * 4 + panel * 64
            x, part = address(whole[block]), address(parts[block])
            _block(family, x, part, address(code), address(scale), groups, count, to, stride)
        panel = fetch_add(taken, PANELS)


@njit(cache=True)
def _block(family, x, parts, codes, scales, groups, panels, out, stride):
    for row in range(ROWS):
        for panel in range(panels):
            prefetch_to_write(out + row * stride + panel * 64)
    half_block(family, x, parts, codes, scales, groups, panels, out, stride)
    half_block(family, x + 4 * 32, parts + 4 * 4, codes, scales, groups, panels, out + 4 * stride, stride)
