"""Products of bytes with codes of 4 bits, for processors with AVX2 and no VNNI. Sums equal `int8_rows` and
`int8_tile` to the last bit.

`vpmaddubsw` adds the products of two bytes to an int16. A group's 32 inputs are added to two int16, which they fit: a
code is at most 15 and an activation 127, so each sum is at most 30,480. There are 16 registers of 256 bits,
which is room for the sums of four rows and 16 outputs.
"""

from numba import njit

from legato_engine.kernels.cpu.linear.int8_panels import PANELS, ROWS, SCALES
from legato_engine.kernels.cpu.linear.int8_rows import add_group
from legato_engine.kernels.cpu.linear.scales import ask_ahead, scale_and_minimum
from legato_engine.kernels.cpu.simd.lanes import nibbles
from legato_engine.kernels.cpu.simd.vector import broadcast, dot_pairs, load, store, store_four, sum_pairs, zero


@njit(cache=True)
def one_row(x, parts, codes, four, scales, summed, groups, out):
    """As `int8_rows.one_row`."""
    total = zero()
    for group in range(groups):
        ask_ahead(codes, four, scales, groups + group)
        sums = _dots(_dots(zero(), load(codes), x), load(codes + 64), x + 8)
        sums = _dots(_dots(sums, load(codes + 128), x + 16), load(codes + 192), x + 24)
        weight_scale, minimum = scale_and_minimum(scales, group, four, summed)
        total = add_group(sum_pairs(sums), total, weight_scale, minimum, parts, parts + 4)
        codes += 256
        x += 32
        parts += 8
    store(out, total)


@njit(cache=True)
def _dots(sums, codes, x):
    """Adds the products of eight inputs of a row."""
    sums = dot_pairs(sums, nibbles(codes, 0), broadcast(x))
    return dot_pairs(sums, nibbles(codes, 4), broadcast(x + 4))


@njit(cache=True)
def eight_rows(x, parts, codes, four, scales, summed, groups, out, stride, rows):
    """As `int8_rows.eight_rows`; the last four are left out if there are at most 4 `rows`."""
    _four_rows(x, parts, codes, four, scales, summed, groups, out, stride)
    if rows > 4:
        _four_rows(x + 4 * 32, parts + 4 * 4, codes, four, scales, summed, groups, out + 4 * stride, stride)


@njit(cache=True)
def _four_rows(x, parts, codes, four, scales, summed, groups, out, stride):
    t0, t1, t2, t3 = zero(), zero(), zero(), zero()
    for group in range(groups):
        s = _no_sums()
        for word in range(4):
            c, at = load(codes + word * 64), x + word * 8
            s = _products(_products(s, nibbles(c, 0), at), nibbles(c, 4), at + 4)
        weight_scale, minimum = scale_and_minimum(scales, group, four, summed)
        t0, t1, t2, t3 = _add_four((t0, t1, t2, t3), s, weight_scale, minimum, parts)
        codes += 256
        x += ROWS * 32
        parts += ROWS * 8
    store_four((t0, t1, t2, t3), out, stride)


@njit(cache=True)
def half_block(x, parts, codes, scales, groups, panels, out, stride):
    """As `int8_tile.half_block`."""
    for panel in range(panels):
        _tile(x, parts, codes + panel * 64, scales + panel * 64, groups, out + panel * 64, stride)


@njit(cache=True)
def _tile(x, parts, codes, scales, groups, out, stride):
    t0, t1, t2, t3 = zero(), zero(), zero(), zero()
    for _ in range(groups):
        s = _no_sums()
        for quad in range(8):
            s = _products(s, load(codes + quad * PANELS * 64), x + quad * 4)
        weight_scale, minimum = load(scales), load(scales + 2 * PANELS * 64)
        t0, t1, t2, t3 = _add_four((t0, t1, t2, t3), s, weight_scale, minimum, parts)
        codes += PANELS * 512
        x += ROWS * 32
        parts += ROWS * 8
        scales += SCALES
    store_four((t0, t1, t2, t3), out, stride)


@njit(cache=True)
def _no_sums():
    return zero(), zero(), zero(), zero()


@njit(cache=True)
def _products(s, c, x):
    """Adds the products of four inputs to the sums of four rows."""
    return (
        dot_pairs(s[0], c, broadcast(x)), dot_pairs(s[1], c, broadcast(x + 32)),
        dot_pairs(s[2], c, broadcast(x + 64)), dot_pairs(s[3], c, broadcast(x + 96)),
    )  # fmt: skip


@njit(cache=True)
def _add_four(t, s, weight_scale, minimum, parts):
    """Adds a group's sums to the totals of four rows."""
    return (
        add_group(sum_pairs(s[0]), t[0], weight_scale, minimum, parts, parts + ROWS * 4),
        add_group(sum_pairs(s[1]), t[1], weight_scale, minimum, parts + 4, parts + ROWS * 4 + 4),
        add_group(sum_pairs(s[2]), t[2], weight_scale, minimum, parts + 8, parts + ROWS * 4 + 8),
        add_group(sum_pairs(s[3]), t[3], weight_scale, minimum, parts + 12, parts + ROWS * 4 + 12),
    )
