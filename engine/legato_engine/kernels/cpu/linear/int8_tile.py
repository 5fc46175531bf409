"""Products of bytes for many rows, in tiles of four rows and 48 outputs.

A sum's next product waits for its last one, so a tile's 12 sums are interleaved, which leaves registers for their
totals. The summands of a result and their order are the same as in `int8_rows`.
"""

from numba import njit

from legato_engine.kernels.cpu.linear.int8_panels import PANELS, ROWS, SCALES
from legato_engine.kernels.cpu.simd.lanes import biased
from legato_engine.kernels.cpu.simd.vector import broadcast, dot_bytes, load, multiply_add, store_four, zero


@njit(cache=True)
def _add_products(s, codes, x):
    """Adds the products of four inputs to the sums, three for each of four rows."""
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
    """Adds a group's sums to the totals of a row in one panel."""
    products = multiply_add(sums, load(scales), load(scales + PANELS * 64))
    total = multiply_add(products, broadcast(parts), total)
    return multiply_add(load(scales + 2 * PANELS * 64), broadcast(parts + 4 * ROWS), total)


@njit(cache=True)
def half_block(x, parts, codes, scales, groups, panels, out, stride):
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
        scales += SCALES
    store_four((a0, a1, a2, a3), out, stride)
    if panels > 1:
        store_four((b0, b1, b2, b3), out + 64, stride)
    if panels > 2:
        store_four((c0, c1, c2, c3), out + 128, stride)
