"""Products of bytes for many rows, in tiles of four rows and 48 outputs. What is unpacked stays in a core's cache
meanwhile.

A sum's next product waits for its last one, so those of a tile's 12 sums are computed by turns, which leaves registers
for their totals. The numbers that are added for a result, and their order, are those of `numba_int8_rows`.
"""

import numpy as np
from numba import njit

from legato_engine.kernels.atomics import fetch_add
from legato_engine.kernels.lanes import BIAS, biased, load_quads, nibbles, prefetch_to_write, times
from legato_engine.kernels.linear.numba_int8_rows import scale_and_least
from legato_engine.kernels.linear.numba_scales import of_panel
from legato_engine.kernels.vector import address, broadcast, dot_bytes, load, multiply_add, store, zero

ROWS = 8  # of a block
PANELS = 3  # of 16 outputs
_SCALES = 3 * PANELS * 64  # bytes of a group's: what a code is worth, BIAS codes less than nothing, and a code of 0


@njit(cache=True)
def _add_products(s, codes, x):
    """Adds those of four inputs to the sums, three for each of four rows."""
    a, b, c = load(codes), load(codes + 64), load(codes + 128)
    x0, x1, x2, x3 = broadcast(x), broadcast(x + 32), broadcast(x + 64), broadcast(x + 96)
    return (
        dot_bytes(s[0], a, x0), dot_bytes(s[1], b, x0), dot_bytes(s[2], c, x0),
        dot_bytes(s[3], a, x1), dot_bytes(s[4], b, x1), dot_bytes(s[5], c, x1),
        dot_bytes(s[6], a, x2), dot_bytes(s[7], b, x2), dot_bytes(s[8], c, x2),
        dot_bytes(s[9], a, x3), dot_bytes(s[10], b, x3), dot_bytes(s[11], c, x3),
    )  # fmt: skip


@njit(cache=True, inline="always")  # a call would put all registers into memory
def _products(x, codes):
    """A group's sums plus BIAS, as floats; addresses of int8 [4, 32] and uint8 [8, 48, 4]: four inputs of an output."""
    b = biased()
    s = _add_products((b, b, b, b, b, b, b, b, b, b, b, b), codes, x)
    s = _add_products(_add_products(s, codes + 192, x + 4), codes + 384, x + 8)
    s = _add_products(_add_products(s, codes + 576, x + 12), codes + 768, x + 16)
    s = _add_products(_add_products(s, codes + 960, x + 20), codes + 1152, x + 24)
    return _add_products(s, codes + 1344, x + 28)


@njit(cache=True)
def _add(total, sums, parts, scales):
    """To the totals of a row in one panel, adds those of a group."""
    products = multiply_add(sums, load(scales), load(scales + PANELS * 64))
    total = multiply_add(products, broadcast(parts), total)
    return multiply_add(load(scales + 2 * PANELS * 64), broadcast(parts + 4 * ROWS), total)


@njit(cache=True)
def _half_block(x, parts, codes, scales, groups, panels, out, stride):
    """Four rows of up to PANELS panels; all but the counts are addresses: x int8 [groups, 8, 32] and parts float32
    [groups, 2, 8] (the scale of x, and scale · sum), from the first of the rows on; codes uint8 [groups, 8, 48, 4],
    scales float32 [groups, 3, 48].
    """
    a0, b0, c0, a1, b1, c1 = zero(), zero(), zero(), zero(), zero(), zero()
    a2, b2, c2, a3, b3, c3 = zero(), zero(), zero(), zero(), zero(), zero()
    for _ in range(groups):
        s = _products(x, codes)
        b, c = scales + 64, scales + 128
        a0, b0, c0 = _add(a0, s[0], parts, scales), _add(b0, s[1], parts, b), _add(c0, s[2], parts, c)
        a1, b1, c1 = _add(a1, s[3], parts + 4, scales), _add(b1, s[4], parts + 4, b), _add(c1, s[5], parts + 4, c)
        a2, b2, c2 = _add(a2, s[6], parts + 8, scales), _add(b2, s[7], parts + 8, b), _add(c2, s[8], parts + 8, c)
        a3, b3, c3 = _add(a3, s[9], parts + 12, scales), _add(b3, s[10], parts + 12, b), _add(c3, s[11], parts + 12, c)
        x += ROWS * 32
        parts += ROWS * 8
        codes += PANELS * 512
        scales += _SCALES
    _store_four((a0, a1, a2, a3), out, stride)
    if panels > 1:
        _store_four((b0, b1, b2, b3), out + 64, stride)
    if panels > 2:
        _store_four((c0, c1, c2, c3), out + 128, stride)


@njit(cache=True)
def _store_four(rows, out, stride):
    store(out, rows[0])
    store(out + stride, rows[1])
    store(out + 2 * stride, rows[2])
    store(out + 3 * stride, rows[3])


@njit(cache=True)
def _block(x, parts, codes, scales, groups, panels, out, stride):
    for row in range(ROWS):
        for panel in range(panels):
            prefetch_to_write(out + row * stride + panel * 64)
    _half_block(x, parts, codes, scales, groups, panels, out, stride)
    _half_block(x + 4 * 32, parts + 4 * 4, codes, scales, groups, panels, out + 4 * stride, stride)


@njit(cache=True)
def _unpack4(codes, groups, to):
    """Codes of a panel as bytes, as `_half_block` takes them; codes and to are addresses."""
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
        by, least = scale_and_least(scales, group, four, summed)
        store(to, by)
        store(to + PANELS * 64, times(by, np.float32(-BIAS)))  # exact: a scale has at most 19 bits, BIAS two
        store(to + 2 * PANELS * 64, least)
        to += _SCALES


@njit(cache=True)
def _room(groups):
    """What one thread computes in, at multiples of 64 bytes: scales and codes as `_half_block` takes them."""
    scales, codes = groups * _SCALES // 4, groups * PANELS * 128
    memory = np.empty(scales + codes + 16, np.float32)
    memory = memory[-address(memory) % 64 // 4 :]
    return memory[:scales], memory[scales:]


@njit(cache=True)
def multiply_tiles(taken, whole, parts, codes, scales, summed, out, first):
    """Takes PANELS panels after the other, as long as other threads leave some."""
    blocks, groups, panels, four = len(whole), whole.shape[1], len(codes), codes.itemsize == 4
    scale, code = _room(groups)
    stride = out.shape[1] * 4
    panel = fetch_add(taken, PANELS)
    while panel < panels:
        count = min(PANELS, panels - panel)
        for index in range(count):
            at, to = address(codes) + (panel + index) * groups * (256 if four else 512), address(code) + index * 64
            if four:
                _unpack4(at, groups, to)
            else:
                _unpack8(at, groups, to)
            _unpack_scales(of_panel(scales, panel + index), groups, four, summed, address(scale) + index * 64)
        for block in range(blocks):
            x, part, to = address(whole[block]), address(parts[block]), address(out) + block * ROWS * stride
            to += first * 4 + panel * 64
            _block(x, part, address(code), address(scale), groups, count, to, stride)
        panel = fetch_add(taken, PANELS)
