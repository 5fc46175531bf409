"""Products of bytes for few rows: codes are unpacked into registers, for one row or eight.

Addresses are integers; x int8 [groups, rows, 32] and parts float32 [groups, 2, rows] are what `int8` makes of
rows: codes, and the scale and scale · sum of each group.
"""

from numba import njit

from legato_engine.kernels.cpu.linear.scales import ask_ahead, scale_and_minimum
from legato_engine.kernels.cpu.simd.lanes import floats_of, load_quads, multiply, nibbles
from legato_engine.kernels.cpu.simd.vector import broadcast, dot_bytes, load, multiply_add, store, store_eight, zero


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
def _dots(c, x):
    """The products of a group's 32 inputs."""
    dots = dot_bytes(zero(), c[0], broadcast(x))
    dots = dot_bytes(dots, c[1], broadcast(x + 4))
    dots = dot_bytes(dots, c[2], broadcast(x + 8))
    dots = dot_bytes(dots, c[3], broadcast(x + 12))
    dots = dot_bytes(dots, c[4], broadcast(x + 16))
    dots = dot_bytes(dots, c[5], broadcast(x + 20))
    dots = dot_bytes(dots, c[6], broadcast(x + 24))
    return dot_bytes(dots, c[7], broadcast(x + 28))


@njit(cache=True)
def one_row(x, parts, codes, four, scales, summed, groups, out):
    """16 outputs of one row; x, parts, codes and out are addresses. The next outputs' codes follow in memory and
    are prefetched.
    """
    step = 256 if four else 512
    total = zero()
    for group in range(groups):
        ask_ahead(codes, four, scales, groups + group)
        weight_scale, minimum = scale_and_minimum(scales, group, four, summed)
        total = add_group(_dots(_codes(codes, four), x), total, weight_scale, minimum, parts, parts + 4)
        codes += step
        x += 32
        parts += 8
    store(out, total)


@njit(cache=True)
def eight_rows(x, parts, codes, four, scales, summed, groups, out, stride, rows):
    """16 outputs of eight rows, of which `rows` are used. Their sums are interleaved: each product waits for the last
    one of its sum.
    """
    step = 256 if four else 512
    o = zero()
    t0, t1, t2, t3, t4, t5, t6, t7 = o, o, o, o, o, o, o, o
    for group in range(groups):
        c = _codes(codes, four)
        b, m = scale_and_minimum(scales, group, four, summed)
        s = _products(_products((o, o, o, o, o, o, o, o), c[0], x), c[1], x + 4)
        s = _products(_products(s, c[2], x + 8), c[3], x + 12)
        s = _products(_products(s, c[4], x + 16), c[5], x + 20)
        s = _products(_products(s, c[6], x + 24), c[7], x + 28)
        t0 = add_group(s[0], t0, b, m, parts, parts + 32)
        t1 = add_group(s[1], t1, b, m, parts + 4, parts + 36)
        t2 = add_group(s[2], t2, b, m, parts + 8, parts + 40)
        t3 = add_group(s[3], t3, b, m, parts + 12, parts + 44)
        t4 = add_group(s[4], t4, b, m, parts + 16, parts + 48)
        t5 = add_group(s[5], t5, b, m, parts + 20, parts + 52)
        t6 = add_group(s[6], t6, b, m, parts + 24, parts + 56)
        t7 = add_group(s[7], t7, b, m, parts + 28, parts + 60)
        codes += step
        x += 256
        parts += 64
    store_eight((t0, t1, t2, t3, t4, t5, t6, t7), out, stride)


@njit(cache=True)
def _products(s, c, x):
    """Adds the products of four inputs to the sums of eight rows."""
    return (
        dot_bytes(s[0], c, broadcast(x)), dot_bytes(s[1], c, broadcast(x + 32)),
        dot_bytes(s[2], c, broadcast(x + 64)), dot_bytes(s[3], c, broadcast(x + 96)),
        dot_bytes(s[4], c, broadcast(x + 128)), dot_bytes(s[5], c, broadcast(x + 160)),
        dot_bytes(s[6], c, broadcast(x + 192)), dot_bytes(s[7], c, broadcast(x + 224)),
    )  # fmt: skip


@njit(cache=True)
def add_group(sums, total, weight_scale, minimum, scale, product):
    """Adds a group's sums to the totals of one row."""
    total = multiply_add(multiply(floats_of(sums), weight_scale), broadcast(scale), total)
    return multiply_add(minimum, broadcast(product), total)
