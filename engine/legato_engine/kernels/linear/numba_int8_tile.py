"""Products of bytes for many rows, in tiles of eight rows and 48 outputs. What is unpacked stays in a core's cache
meanwhile.

A sum's next product waits for its last one, so those of a tile's 24 sums are computed by turns: that is as many as
leave registers for what is multiplied. The order in which a result's numbers are added is that of `numba_int8_rows`.
"""

import numpy as np
from numba import njit

from legato_engine.kernels.atomics import fetch_add
from legato_engine.kernels.lanes import floats_of, load_quads, nibbles, prefetch_to_write
from legato_engine.kernels.linear.numba_int8_rows import scale_and_least
from legato_engine.kernels.linear.numba_scales import of_panel
from legato_engine.kernels.vector import address, broadcast, dot_bytes, load, multiply_add, store, zero

ROWS = 8
PANELS = 3  # of 16 outputs


@njit(cache=True)
def _add_products(s, codes, x):
    """Adds those of four inputs to the sums, three for each row."""
    a, b, c = load(codes), load(codes + 64), load(codes + 128)
    x0, x1, x2, x3 = broadcast(x), broadcast(x + 32), broadcast(x + 64), broadcast(x + 96)
    x4, x5, x6, x7 = broadcast(x + 128), broadcast(x + 160), broadcast(x + 192), broadcast(x + 224)
    return (
        dot_bytes(s[0], a, x0), dot_bytes(s[1], b, x0), dot_bytes(s[2], c, x0),
        dot_bytes(s[3], a, x1), dot_bytes(s[4], b, x1), dot_bytes(s[5], c, x1),
        dot_bytes(s[6], a, x2), dot_bytes(s[7], b, x2), dot_bytes(s[8], c, x2),
        dot_bytes(s[9], a, x3), dot_bytes(s[10], b, x3), dot_bytes(s[11], c, x3),
        dot_bytes(s[12], a, x4), dot_bytes(s[13], b, x4), dot_bytes(s[14], c, x4),
        dot_bytes(s[15], a, x5), dot_bytes(s[16], b, x5), dot_bytes(s[17], c, x5),
        dot_bytes(s[18], a, x6), dot_bytes(s[19], b, x6), dot_bytes(s[20], c, x6),
        dot_bytes(s[21], a, x7), dot_bytes(s[22], b, x7), dot_bytes(s[23], c, x7),
    )  # fmt: skip


@njit(cache=True)
def _add_row(a, b, c, parts, by, least, out):
    """To the totals of one row, adds the sums of a group."""
    scale, product = broadcast(parts), broadcast(parts + 4 * ROWS)
    _add_panel(a, scale, product, by[0], least[0], out)
    _add_panel(b, scale, product, by[1], least[1], out + 64)
    _add_panel(c, scale, product, by[2], least[2], out + 128)


@njit(cache=True)
def _add_panel(sums, scale, product, by, least, out):
    total = multiply_add(floats_of(sums), multiply_add(by, scale, zero()), load(out))
    store(out, multiply_add(least, product, total))


@njit(cache=True)
def _add_group(x, parts, codes, scales, out):
    """All are addresses: x int8 [8, 32], parts float32 [2, 8] (the scale of x, and scale · sum), codes uint8 [8, 48, 4]
    (four inputs of each output), scales float32 [2, 48] (of a code, and what code 0 is worth). Adds to out float32
    [8, 48].
    """
    o = zero()
    s = (o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o)
    s = _add_products(s, codes, x)
    s = _add_products(s, codes + 192, x + 4)
    s = _add_products(s, codes + 384, x + 8)
    s = _add_products(s, codes + 576, x + 12)
    s = _add_products(s, codes + 768, x + 16)
    s = _add_products(s, codes + 960, x + 20)
    s = _add_products(s, codes + 1152, x + 24)
    s = _add_products(s, codes + 1344, x + 28)
    by = load(scales), load(scales + 64), load(scales + 128)
    least = load(scales + 192), load(scales + 256), load(scales + 320)
    _add_row(s[0], s[1], s[2], parts, by, least, out)
    _add_row(s[3], s[4], s[5], parts + 4, by, least, out + 192)
    _add_row(s[6], s[7], s[8], parts + 8, by, least, out + 384)
    _add_row(s[9], s[10], s[11], parts + 12, by, least, out + 576)
    _add_row(s[12], s[13], s[14], parts + 16, by, least, out + 768)
    _add_row(s[15], s[16], s[17], parts + 20, by, least, out + 960)
    _add_row(s[18], s[19], s[20], parts + 24, by, least, out + 1152)
    _add_row(s[21], s[22], s[23], parts + 28, by, least, out + 1344)


@njit(cache=True)
def _unpack4(codes, groups, to):
    """Codes of a panel as bytes, as `_add_group` takes them; codes and to are addresses."""
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
        store(to + group * PANELS * 128, by)
        store(to + group * PANELS * 128 + PANELS * 64, least)


@njit(cache=True)
def _tile(x, parts, codes, scales, groups, panels, total, out, stride):
    """Eight rows of up to PANELS panels; all but the counts are addresses."""
    for place in range(ROWS * PANELS):
        store(total + place * 64, zero())
    for row in range(ROWS):
        for panel in range(panels):
            prefetch_to_write(out + row * stride + panel * 64)
    for group in range(groups):
        _add_group(
            x + group * ROWS * 32, parts + group * ROWS * 8, codes + group * PANELS * 512,
            scales + group * PANELS * 128, total,
        )  # fmt: skip
    for row in range(ROWS):
        for panel in range(panels):
            store(out + row * stride + panel * 64, load(total + (row * PANELS + panel) * 64))


@njit(cache=True)
def _room(groups):
    """What one thread computes in, at multiples of 64 bytes: totals of a tile, scales and codes as `_add_group` takes
    them.
    """
    sums, scales, codes = ROWS * PANELS * 16, groups * PANELS * 32, groups * PANELS * 128
    memory = np.empty(sums + scales + codes + 16, np.float32)
    memory = memory[-address(memory) % 64 // 4 :]
    return memory[:sums], memory[sums : sums + scales], memory[sums + scales :]


@njit(cache=True)
def multiply_tiles(taken, whole, parts, codes, scales, summed, out, first):
    """Takes PANELS panels after the other, as long as other threads leave some."""
    blocks, groups, panels, four = len(whole), whole.shape[1], len(codes), codes.itemsize == 4
    total, scale, code = _room(groups)
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
            _tile(x, part, address(code), address(scale), groups, count, address(total), to, stride)
        panel = fetch_add(taken, PANELS)
