"""Low-rank updates of a step's tokens by many adapters on a processor. The maths is in `reference/low_rank.md`.

Two operators update a linear layer: `shrink` multiplies tokens with A, `expand` multiplies these inner values with B
and adds the products to the outputs. Tokens are sorted by adapter into items. A task is some ranks or some outputs of
an item, so that threads share the matrices, and a matrix is read from memory once for all tokens of an item.

A number has the same last bits in any step: each is summed in one order, whatever tokens are computed together.
"""

import numpy as np
from numba import carray, njit, prange

from legato_engine.kernels.cpu.attention.kv_registers import bytes_of, first, second
from legato_engine.kernels.cpu.simd.lanes import across, put_float
from legato_engine.kernels.cpu.simd.vector import address, broadcast, load, multiply_add, pointer, store, zero

UNIT = 32  # inputs, or outputs of a panel, whose numbers are two registers
TOKENS = 64  # of an item
RANKS = 16  # of a task
PANELS = 8  # of a task
FEW = 4  # tokens that are not worth waking a second thread for

# A projection in an adapter's table. A is [ranks, inputs], B is [panels, ranks, UNIT], by address, in units as
# `kv_registers` reads them, or [0] without an update.
MATRICES = np.dtype([(name, np.int64) for name in ("down", "up", "ranks", "first", "outputs")])
# Neighbouring tokens of one adapter: the address of its table, the first of them, and their number.
ITEM = np.dtype([(name, np.int64) for name in ("table", "first", "count")])


@njit(cache=True)
def _matrices(item, projection):
    return carray(pointer(item.table), (projection + 1,), MATRICES)[projection]


@njit(cache=True)
def _four_tokens(kind, down, x, inputs, inner, stride):
    """The products of a row of A with four rows of x, to inner values `stride` bytes apart."""
    x0, x1, x2, x3 = x
    a, b, c, d = zero(), zero(), zero(), zero()
    for _ in range(inputs // UNIT):
        one, two = first(kind, down), second(kind, down)
        a = multiply_add(two, load(x0 + 64), multiply_add(one, load(x0), a))
        b = multiply_add(two, load(x1 + 64), multiply_add(one, load(x1), b))
        c = multiply_add(two, load(x2 + 64), multiply_add(one, load(x2), c))
        d = multiply_add(two, load(x3 + 64), multiply_add(one, load(x3), d))
        down += UNIT * bytes_of(kind)
        x0, x1, x2, x3 = x0 + 128, x1 + 128, x2 + 128, x3 + 128
    put_float(inner, across(a))
    put_float(inner + stride, across(b))
    put_float(inner + 2 * stride, across(c))
    put_float(inner + 3 * stride, across(d))


@njit(cache=True)
def _four_ranks(kind, down, x, inputs, inner):
    """The products of four rows of A with a row of x."""
    row = inputs * bytes_of(kind)
    a, b, c, d = zero(), zero(), zero(), zero()
    for _ in range(inputs // UNIT):
        one, two = load(x), load(x + 64)
        a = multiply_add(second(kind, down), two, multiply_add(first(kind, down), one, a))
        b = multiply_add(second(kind, down + row), two, multiply_add(first(kind, down + row), one, b))
        c = multiply_add(second(kind, down + 2 * row), two, multiply_add(first(kind, down + 2 * row), one, c))
        d = multiply_add(second(kind, down + 3 * row), two, multiply_add(first(kind, down + 3 * row), one, d))
        down += UNIT * bytes_of(kind)
        x += 128
    put_float(inner, across(a))
    put_float(inner + 4, across(b))
    put_float(inner + 8, across(c))
    put_float(inner + 12, across(d))


@njit(cache=True)
def _one_rank(kind, down, x, inputs, inner):
    a = zero()
    for _ in range(inputs // UNIT):
        a = multiply_add(second(kind, down), load(x + 64), multiply_add(first(kind, down), load(x), a))
        down += UNIT * bytes_of(kind)
        x += 128
    put_float(inner, across(a))


@njit(cache=True)
def shrink_tasks(items, projections, inner):
    return len(items) * projections * ((inner.shape[2] + RANKS - 1) // RANKS)


@njit(cache=True)
def shrink(kind, x, inputs, projection, projections, rows, items, inner, task):
    """x float32 [·, inputs], by address: the row of each token is in `rows` → inner [tokens, projections, ranks].

    `kind` is KV_FLOAT32 or KV_BFLOAT16, the format of matrices; the layer has `projections` from `projection` on."""
    blocks = (inner.shape[2] + RANKS - 1) // RANKS
    item, of_layer, block = items[task // (projections * blocks)], task // blocks % projections, task % blocks
    matrices = _matrices(item, projection + of_layer)
    begin, end = block * RANKS, min(block * RANKS + RANKS, matrices.ranks)
    row, stride, last = inputs * bytes_of(kind), inner.strides[0], item.first + item.count
    fours = item.first + item.count // 4 * 4
    for rank in range(begin, end):
        for token in range(item.first, fours, 4):
            four = (
                x + rows[token] * inputs * 4,
                x + rows[token + 1] * inputs * 4,
                x + rows[token + 2] * inputs * 4,
                x + rows[token + 3] * inputs * 4,
            )
            _four_tokens(kind, matrices.down + rank * row, four, inputs, address(inner[token, of_layer, rank:]), stride)
    for token in range(fours, last):
        at, rank = x + rows[token] * inputs * 4, begin
        while rank + 4 <= end:
            _four_ranks(kind, matrices.down + rank * row, at, inputs, address(inner[token, of_layer, rank:]))
            rank += 4
        while rank < end:
            _one_rank(kind, matrices.down + rank * row, at, inputs, address(inner[token, of_layer, rank:]))
            rank += 1


@njit(cache=True)
def _two_tokens(kind, up, ranks, inner, other, out, below):
    """Adds to a panel of outputs of two tokens, at `out` and `below`."""
    a, b, c, d = load(out), load(out + 64), load(below), load(below + 64)
    for rank in range(ranks):
        one, two = first(kind, up), second(kind, up)
        left, right = broadcast(inner + rank * 4), broadcast(other + rank * 4)
        a, b = multiply_add(one, left, a), multiply_add(two, left, b)
        c, d = multiply_add(one, right, c), multiply_add(two, right, d)
        up += UNIT * bytes_of(kind)
    store(out, a)
    store(out + 64, b)
    store(below, c)
    store(below + 64, d)


@njit(cache=True)
def _one_token(kind, up, ranks, inner, out):
    a, b = load(out), load(out + 64)
    for rank in range(ranks):
        left = broadcast(inner + rank * 4)
        a, b = multiply_add(first(kind, up), left, a), multiply_add(second(kind, up), left, b)
        up += UNIT * bytes_of(kind)
    store(out, a)
    store(out + 64, b)


@njit(cache=True)
def expand_tasks(items, outputs):
    return len(items) * ((outputs // UNIT + PANELS - 1) // PANELS)


@njit(cache=True)
def expand(kind, out, outputs, projection, projections, order, items, inner, task):
    """out float32 [·, outputs], by address, whose rows are in `order`, += inner · Bᵀ; other arguments as `shrink`."""
    blocks = (outputs // UNIT + PANELS - 1) // PANELS
    item, begin = items[task // blocks], task % blocks * PANELS
    for of_layer in range(projections):
        matrices = _matrices(item, projection + of_layer)
        first_panel = matrices.first // UNIT
        panels = range(max(begin, first_panel), min(begin + PANELS, (matrices.first + matrices.outputs) // UNIT))
        if matrices.ranks:
            for panel in panels:
                up = matrices.up + (panel - first_panel) * matrices.ranks * UNIT * bytes_of(kind)
                _panel(kind, up, matrices.ranks, out + panel * UNIT * 4, outputs * 4, order, item, inner[:, of_layer])


@njit(cache=True)
def _panel(kind, up, ranks, out, stride, order, item, inner):
    """Adds to a panel of all tokens of an item."""
    token, last = item.first, item.first + item.count
    while token + 2 <= last:
        one, two = address(inner[token]), address(inner[token + 1])
        _two_tokens(kind, up, ranks, one, two, out + order[token] * stride, out + order[token + 1] * stride)
        token += 2
    if token < last:
        _one_token(kind, up, ranks, address(inner[token]), out + order[token] * stride)


@njit(cache=True, parallel=True, nogil=True)
def _many(kind, x, rows, out, projection, projections, order, items, inner):
    inputs, outputs = x.shape[1], out.shape[1]
    for task in prange(shrink_tasks(items, projections, inner)):
        shrink(kind, address(x), inputs, projection, projections, rows, items, inner, task)
    for task in prange(expand_tasks(items, outputs)):
        expand(kind, address(out), outputs, projection, projections, order, items, inner, task)


@njit(cache=True, nogil=True)
def add(kind, x, rows, out, projection, projections, order, items, inner):
    """out[order] += B (A x[rows]), for each token by its adapter.

    x float32 [·, inputs], out float32 [·, outputs]; rows and order int64 [tokens], sorted by adapter; items ITEM;
    inner float32 [tokens, projections, most ranks]: memory. All sizes but ranks are multiples of UNIT."""
    if len(order) > FEW:
        _many(kind, x, rows, out, projection, projections, order, items, inner)
        return
    inputs, outputs = x.shape[1], out.shape[1]
    for task in range(shrink_tasks(items, projections, inner)):
        shrink(kind, address(x), inputs, projection, projections, rows, items, inner, task)
    for task in range(expand_tasks(items, outputs)):
        expand(kind, address(out), outputs, projection, projections, order, items, inner, task)
