"""All operators of a step in one call: a table of them, by address, that threads go through together.

A call of a compiled function for each operator takes a fifth of a step of one row: some 270 times, numba unpacks
arrays, allocates, and starts and joins a team of threads. Here one team goes through the table. A counter hands out the
tasks of an operator; a thread without a task waits until no other thread is busy, and goes on to the next operator.
Tasks do not depend on the thread, so results are the same with any number of threads, and no thread waits for one that
did not start.

Tasks are the functions that operators themselves call; their folders describe them. Each function here names the fields
of its operator.
"""

import numpy as np
from numba import carray, njit, prange

from legato_engine.kernels.cpu.atomics import fetch_add, read, wait_until_zero
from legato_engine.kernels.cpu.attention import float32 as attention
from legato_engine.kernels.cpu.linear.int8 import FEW, GROUP, round_block
from legato_engine.kernels.cpu.linear.int8_panels import ROWS
from legato_engine.kernels.cpu.linear.int8_products import eight_rows, one_row
from legato_engine.kernels.cpu.linear.packing import COLUMNS
from legato_engine.kernels.cpu.linear.scales import of_panel
from legato_engine.kernels.cpu.low_rank import expand, expand_tasks, shrink, shrink_tasks
from legato_engine.kernels.cpu.rms_norm import norm_head, norm_row
from legato_engine.kernels.cpu.rope import rotate_row
from legato_engine.kernels.cpu.silu_mul import gelu_mul_row, silu_mul_row
from legato_engine.kernels.cpu.simd.vector import address, pointer
from legato_engine.kernels.tags import KV_BFLOAT16

NORM, ROUND, MULTIPLY, ADD, NORM_HEADS, ROTATE, ATTEND, SILU_MUL, GELU_MUL, SHRINK, EXPAND = range(11)
MOST = (FEW - 1) * ROWS  # rows of a step: products of more unpack codes in another way
PANELS = 4  # of 16 outputs: a task
_LINE = 8  # int64 in a line of the cache, so that counters do not share one

_ADDRESSES = (
    "x", "residual", "weight", "bias", "out",
    "rounded", "rounded_parts",  # 8-bit activations; their scales and scale · sum
    "codes", "scales", "scale_factors", "minima", "minimum_factors",
    "cos", "sin", "sinks",
)  # fmt: skip
_NUMBERS = (
    "width", "out_stride",  # numbers in a row, bytes between rows of `out`
    "bias_stride",  # numbers between rows of `bias`
    "groups", "scale_factor_groups", "minimum_groups", "minimum_factor_groups",  # of a row
    "panels", "bits", "scale_bits",
    "heads", "queries", "first", "dim", "pairs", "window", "group", "layer",
    "projection", "projections",
)  # fmt: skip

# An operator in the table; each kind uses some of the fields.
OPERATOR = np.dtype([
    ("kind", np.int64),
    *((name, np.int64) for name in (*_ADDRESSES, *_NUMBERS)),
    *((name, np.float32) for name in ("eps", "multiplier")),
])  # fmt: skip


@njit(cache=True)
def _row(at, row, width):
    """A row of float32 [rows, width]."""
    return carray(pointer(at + row * width * 4), (width,), np.float32)


@njit(cache=True)
def _norm(operator, row):
    """x, residual, out: float32 [rows, width]; multiplier of x; weight [width]; eps."""
    width = operator.width
    norm_row(
        _row(operator.x, row, width),
        operator.multiplier,
        _row(operator.residual, row, width),
        _row(operator.weight, 0, width),
        operator.eps,
        _row(operator.out, row, width),
    )


@njit(cache=True)
def _rounded(operator, rows):
    """Rounded activations and their parts, as in `linear.int8.multiply`."""
    width = 1 if rows == 1 else ROWS
    blocks = (rows + width - 1) // width
    return (
        carray(pointer(operator.rounded), (blocks, operator.groups, width, GROUP), np.int8),
        carray(pointer(operator.rounded_parts), (blocks, operator.groups, 2, width), np.float32),
    )


@njit(cache=True)
def _round(operator, rows, block):
    """x float32 [rows, groups · 32]; rounded, rounded_parts, groups; bits of the codes that it is multiplied with."""
    codes, parts = _rounded(operator, rows)
    x = carray(pointer(operator.x), (rows, operator.groups * GROUP), np.float32)
    round_block(x, rows, block, operator.bits == 4, codes[block], parts[block])


@njit(cache=True)
def _multiply(family, operator, rows, task):
    """rounded, rounded_parts; codes, scales and minima with their factors, and the groups of each; panels; bits of
    codes and of scales; out and out_stride.
    """
    panels = operator.panels
    shape, factor_shape = (panels, operator.groups, COLUMNS), (panels, operator.scale_factor_groups, COLUMNS)
    minimum_shape = panels, operator.minimum_groups, COLUMNS
    factors = carray(pointer(operator.scale_factors), factor_shape, np.uint16)
    minimum_factor_shape = panels, operator.minimum_factor_groups, COLUMNS
    minimum_factors = carray(pointer(operator.minimum_factors), minimum_factor_shape, np.uint16)
    if operator.scale_bits == 8:
        scales = carray(pointer(operator.scales), shape, np.int8)
        minima = carray(pointer(operator.minima), minimum_shape, np.int8)
        _multiply_panels(family, operator, rows, task, (scales, factors, minima, minimum_factors))
    else:
        halves = carray(pointer(operator.scales), shape, np.uint16)
        minimum_halves = carray(pointer(operator.minima), minimum_shape, np.uint16)
        _multiply_panels(family, operator, rows, task, (halves, factors, minimum_halves, minimum_factors))


@njit(cache=True)
def _multiply_panels(family, operator, rows, task, scales):
    groups, summed, stride = operator.groups, operator.minimum_groups > 0, operator.out_stride
    four = operator.bits == 4
    width = 1 if rows == 1 else ROWS
    for block in range((rows + width - 1) // width):
        x = operator.rounded + block * groups * width * GROUP
        parts = operator.rounded_parts + block * groups * width * 8
        to = operator.out + block * width * stride
        for panel in range(task * PANELS, min(task * PANELS + PANELS, operator.panels)):
            code, of = operator.codes + panel * groups * (256 if four else 512), of_panel(scales, panel)
            if width == 1:
                one_row(family, x, parts, code, four, of, summed, groups, to + panel * 64)
            else:
                left = rows - block * width
                eight_rows(family, x, parts, code, four, of, summed, groups, to + panel * 64, stride, left)


@njit(cache=True)
def _add(operator, row):
    """out float32 [rows, width]; bias, a row to add to each, `bias_stride` numbers apart: 0 if it is the same."""
    width = operator.width
    out, bias = _row(operator.out, row, width), _row(operator.bias + row * operator.bias_stride * 4, 0, width)
    for i in range(width):
        out[i] += bias[i]


@njit(cache=True)
def _norm_heads(operator, row):
    """x float32 [rows, width], in place for `heads` of `dim` numbers from `first` on; weight [dim]; eps."""
    dim, x = operator.dim, operator.x + (row * operator.width + operator.first) * 4
    for head in range(operator.heads):
        norm_head(_row(x, head, dim), _row(operator.weight, 0, dim), operator.eps)


@njit(cache=True)
def _rotate(operator, row, positions, slots, arena, factors):
    """x float32 [rows, heads, dim], queries before keys and values; cos and sin [positions, pairs]; layer of group."""
    heads, dim, pairs = operator.heads, operator.dim, operator.pairs
    at, slot, size = positions[row], slots[operator.group, row], arena.shape[4]
    own = carray(pointer(operator.x + row * heads * dim * 4), (heads, dim), np.float32)
    cos, sin = _row(operator.cos, at, pairs), _row(operator.sin, at, pairs)
    rotate_row(
        own, operator.queries, cos, sin, arena[slot // size], operator.layer, slot % size, factors[operator.group]
    )


@njit(cache=True)
def _attend(kv, operator, counter, rows, work, tables, arena, factors, kept, done):
    """x float32 [rows, heads, dim]; out float32 [rows, queries, dim]; window; layer of group; sinks [queries], or 0."""
    x = carray(pointer(operator.x), (rows, operator.heads, operator.dim), np.float32)
    out = carray(pointer(operator.out), (rows, operator.queries, operator.dim), np.float32)
    window, group, layer = operator.window, operator.group, operator.layer
    sinks = carray(pointer(operator.sinks), (operator.queries if operator.sinks else 0,), np.float32)
    attention.work_off(
        kv, counter, x, work, tables[group], window, arena, layer, factors[group], sinks, kept, done[group, layer], out
    )


@njit(cache=True)
def _silu_mul(operator, row):
    """x float32 [rows, 2 · width], gates before ups; out [rows, width]."""
    silu_mul_row(_row(operator.x, row, 2 * operator.width), _row(operator.out, row, operator.width))


@njit(cache=True)
def _gelu_mul(operator, row):
    """As `_silu_mul`."""
    gelu_mul_row(_row(operator.x, row, 2 * operator.width), _row(operator.out, row, operator.width))


@njit(cache=True)
def _shrink(operator, task, adapted):
    """x float32 [rows, width]; projection, projections."""
    order, items, inner = adapted
    shrink(
        KV_BFLOAT16, operator.x, operator.width, operator.projection, operator.projections, order, items, inner, task
    )


@njit(cache=True)
def _expand(operator, task, adapted):
    """out float32 [rows, width]; projection, projections."""
    order, items, inner = adapted
    expand(
        KV_BFLOAT16, operator.out, operator.width, operator.projection, operator.projections, order, items, inner, task
    )


@njit(cache=True)
def _tasks(operator, rows, attention_tasks, adapted):
    if operator.kind == SHRINK:
        return shrink_tasks(adapted[1], operator.projections, adapted[2])
    if operator.kind == EXPAND:
        return expand_tasks(adapted[1], operator.width)
    if operator.kind == MULTIPLY:
        return (operator.panels + PANELS - 1) // PANELS
    if operator.kind == ROUND:
        return (rows + ROWS - 1) // ROWS
    return attention_tasks if operator.kind == ATTEND else rows


@njit(cache=True)
def _compute(family, operator, task, rows, positions, slots, arena, factors, adapted):
    kind = operator.kind
    if kind == MULTIPLY:
        _multiply(family, operator, rows, task)
    elif kind == ROUND:
        _round(operator, rows, task)
    elif kind == NORM:
        _norm(operator, task)
    elif kind == SILU_MUL:
        _silu_mul(operator, task)
    elif kind == GELU_MUL:
        _gelu_mul(operator, task)
    elif kind == ROTATE:
        _rotate(operator, task, positions, slots, arena, factors)
    elif kind == ADD:
        _add(operator, task)
    elif kind == NORM_HEADS:
        _norm_heads(operator, task)
    elif kind == SHRINK:
        _shrink(operator, task, adapted)
    elif kind == EXPAND:
        _expand(operator, task, adapted)


@njit(cache=True)
def _run_thread(family, kv, table, counters, rows, positions, slots, work, tables, arena, factors, adapted, kept, done):
    """The whole table as one thread goes through it."""
    reading, writing = factors
    for index in range(len(table)):
        operator, counter = table[index], address(counters[index])
        tasks, busy = _tasks(operator, rows, len(work) * arena.shape[1], adapted), counter + 8
        if read(counter) < tasks:
            fetch_add(busy, 1)  # before a task is taken: with no task left and nobody busy, all tasks are done
            if operator.kind == ATTEND:
                _attend(kv, operator, counters[index], rows, work, tables, arena, reading, kept, done)
            else:
                task = fetch_add(counter, 1)
                while task < tasks:
                    _compute(family, operator, task, rows, positions, slots, arena, writing, adapted)
                    task = fetch_add(counter, 1) if task + 1 < tasks else tasks
            fetch_add(busy, -1)
        wait_until_zero(busy)


@njit(cache=True, parallel=True, nogil=True)
def run(family, kv, table, positions, slots, work, tables, arena, factors, adapted, threads):
    """`table` OPERATOR [operators], with addresses of memory that has room for the rows of `positions` int64 [rows], up
    to a multiple of 8. `slots` int64 [groups, rows] and `tables` [groups, rows, blocks] are of groups of layers.
    `kv`, `work` and `arena` are arguments of `attention.float32.attention`; `factors` are `KVFactors` [groups, layers
    of a block, 2, kv_heads]; `family` is VNNI or AVX2 of `tags`; `adapted` are order, items and inner values as in
    `low_rank.add`, all of length 0 without adapters.
    """
    kv_heads, parts = arena.shape[1], attention.slots_of(work)
    kept = np.empty((kv_heads, parts, arena.shape[5] + 2), np.float32)
    done = np.zeros((len(tables), arena.shape[2], kv_heads, parts), np.int64)
    counters = np.zeros((len(table), _LINE), np.int64)
    for _ in prange(threads):
        _run_thread(
            family, kv, table, counters, len(positions), positions, slots, work, tables, arena, factors, adapted, kept,
            done,
        )  # fmt: skip
