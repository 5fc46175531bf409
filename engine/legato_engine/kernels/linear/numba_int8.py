"""Linear layers from 4-bit and 8-bit codes and 8-bit activations, for processors with AVX-512 VNNI. See README.

Each row of x is rounded to 8 bits, with a scale for each group of 32 inputs, as in llama.cpp (its type Q8_1). A
group's sum of products is an exact integer, all other sums are float32; the weights are those of the file. A row's
result depends on no other row. Sizes: out is a multiple of 16, in of 32, and a weight's group is 32 inputs, too.
"""

import numpy as np
from numba import njit, prange

from legato_engine.kernels.lanes import (
    across,
    evens_first,
    floats_of,
    largest,
    load_quads,
    nibbles,
    rounded,
    store_bytes,
    times,
)
from legato_engine.kernels.linear.numba_scales import minimum_of, of_panel, scale_of
from legato_engine.kernels.vector import add, address, broadcast, dot_bytes, load, multiply_add, store, zero

GROUP = 32
ROWS = 8  # that codes are unpacked for at once
PANELS = 4  # whose codes stay in the cache while all rows pass
LEAST = np.float32(1e-30)  # a group of smaller numbers is zeros


@njit(cache=True, error_model="numpy")
def _round(x, four, codes, parts):
    """One row: x ≈ codes · scale in each group. codes int8 [groups, 32], in the order in which a weight's are unpacked;
    parts float32 [groups, 2]: the scale, and scale · the sum of the codes.
    """
    for group in range(parts.shape[0]):
        at, to = address(x) + group * GROUP * 4, address(codes[group])
        left, right = load(at), load(at + 64)
        most = largest(left, right)
        by = np.float32(127) / most if most > LEAST else np.float32(0)
        # An infinity or a NaN in the group becomes a NaN of its scale, and so of all outputs.
        scale = most / np.float32(127) + np.float32(0) * across(add(left, right))
        left, right = rounded(times(left, by)), rounded(times(right, by))
        parts[group, 0] = scale
        parts[group, 1] = scale * (across(floats_of(left)) + across(floats_of(right)))
        store_bytes(to, evens_first(left) if four else left)
        store_bytes(to + 16, evens_first(right) if four else right)


@njit(cache=True)
def _round_block(x, rows, block, four, codes, parts):
    """The rows of a block: codes [groups, width, 32], parts [groups, 2, width]."""
    width = codes.shape[1]
    for lane in range(min(width, rows - block * width)):
        _round(x[block * width + lane], four, codes[:, lane], parts[:, :, lane])


@njit(cache=True)
def _codes(at, four):
    """Codes of 16 outputs and 32 inputs, as unsigned bytes: four inputs of each output in a word."""
    if four:
        a, b, c, d = load(at), load(at + 64), load(at + 128), load(at + 192)
        return (nibbles(a, 0), nibbles(a, 4), nibbles(b, 0), nibbles(b, 4),
                nibbles(c, 0), nibbles(c, 4), nibbles(d, 0), nibbles(d, 4))  # fmt: skip
    return (load_quads(at), load_quads(at + 64), load_quads(at + 128), load_quads(at + 192),
            load_quads(at + 256), load_quads(at + 320), load_quads(at + 384), load_quads(at + 448))  # fmt: skip


@njit(cache=True)
def _scale_and_least(scales, group, four, summed):
    """Of 16 outputs: what a code is worth, and a code of 0."""
    by = scale_of(scales, group)
    least = minimum_of(scales, group) if summed else zero()
    return by, least if four else add(times(by, np.float32(-128)), least)


@njit(cache=True)
def _add(total, c, x, scale, product, by, least):
    """To the totals of one row, adds those of a group."""
    dots = dot_bytes(zero(), c[0], broadcast(x))
    dots = dot_bytes(dots, c[1], broadcast(x + 4))
    dots = dot_bytes(dots, c[2], broadcast(x + 8))
    dots = dot_bytes(dots, c[3], broadcast(x + 12))
    dots = dot_bytes(dots, c[4], broadcast(x + 16))
    dots = dot_bytes(dots, c[5], broadcast(x + 20))
    dots = dot_bytes(dots, c[6], broadcast(x + 24))
    dots = dot_bytes(dots, c[7], broadcast(x + 28))
    total = multiply_add(floats_of(dots), multiply_add(by, broadcast(scale), zero()), total)
    return multiply_add(least, broadcast(product), total)


@njit(cache=True)
def _one(x, parts, codes, four, scales, summed, groups, out):
    """16 outputs of one row; x, parts, codes and out are addresses."""
    step = 256 if four else 512
    total = zero()
    for group in range(groups):
        by, least = _scale_and_least(scales, group, four, summed)
        total = _add(total, _codes(codes, four), x, parts, parts + 4, by, least)
        codes += step
        x += 32
        parts += 8
    store(out, total)


@njit(cache=True)
def _eight(x, parts, codes, four, scales, summed, groups, out, stride):
    """16 outputs of eight rows."""
    step = 256 if four else 512
    t0, t1, t2, t3, t4, t5, t6, t7 = zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()
    for group in range(groups):
        c = _codes(codes, four)
        b, m = _scale_and_least(scales, group, four, summed)
        t0 = _add(t0, c, x, parts, parts + 32, b, m)
        t1 = _add(t1, c, x + 32, parts + 4, parts + 36, b, m)
        t2 = _add(t2, c, x + 64, parts + 8, parts + 40, b, m)
        t3 = _add(t3, c, x + 96, parts + 12, parts + 44, b, m)
        t4 = _add(t4, c, x + 128, parts + 16, parts + 48, b, m)
        t5 = _add(t5, c, x + 160, parts + 20, parts + 52, b, m)
        t6 = _add(t6, c, x + 192, parts + 24, parts + 56, b, m)
        t7 = _add(t7, c, x + 224, parts + 28, parts + 60, b, m)
        codes += step
        x += 256
        parts += 64
    store(out, t0)
    store(out + stride, t1)
    store(out + 2 * stride, t2)
    store(out + 3 * stride, t3)
    out += 4 * stride
    store(out, t4)
    store(out + stride, t5)
    store(out + 2 * stride, t6)
    store(out + 3 * stride, t7)


@njit(cache=True, parallel=True, nogil=True)
def multiply(x, rows, codes, values, factors, minima, least_factors, out, first):
    """x float32 [room, in] times a weight of 4-bit or 8-bit codes; out float32 [room, …], from column `first` on, where
    room is a multiple of 8: rows beyond `rows` are overwritten.
    """
    four, groups, summed = codes.itemsize == 4, values.shape[1], minima.shape[1] > 0
    scales = values, factors, minima, least_factors
    width = 1 if rows == 1 else ROWS
    blocks, panels = (rows + width - 1) // width, codes.shape[0]
    whole = np.zeros((blocks, groups, width, GROUP), np.int8)
    parts = np.zeros((blocks, groups, 2, width), np.float32)
    if blocks > 1:
        for block in prange(blocks):
            _round_block(x, rows, block, four, whole[block], parts[block])
    else:  # not worth waking threads for
        _round_block(x, rows, 0, four, whole[0], parts[0])
    block_bytes, part_bytes, stride = groups * width * GROUP, groups * width * 8, out.shape[1] * 4
    panel_bytes = groups * (256 if four else 512)
    together = PANELS if blocks > 1 else 1
    for turn in prange((panels + together - 1) // together):
        for block in range(blocks):
            at, part = address(whole) + block * block_bytes, address(parts) + block * part_bytes
            to = address(out) + block * width * stride + first * 4
            for panel in range(turn * together, min(turn * together + together, panels)):
                code, of = address(codes) + panel * panel_bytes, of_panel(scales, panel)
                if width == 1:
                    _one(at, part, code, four, of, summed, groups, to + panel * 64)
                else:
                    _eight(at, part, code, four, of, summed, groups, to + panel * 64, stride)
