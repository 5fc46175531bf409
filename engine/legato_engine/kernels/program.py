"""All operators of a step in one call: a table of them, by address, that threads go through together.

A call of a compiled function for each operator costs a step of one row a fifth of its time: some 270 times numba
takes arrays apart, allocates, and sends a team of threads off and gathers it again. Here one team goes through the
table. An operator is dealt out in tasks, by a counter; a thread that finds no task left waits until no other is at
one, and goes on to the next operator. No task asks who computes it, so results are the same with any number of
threads, and one thread alone gets through as well: none waits for a thread that did not come.

Tasks are the functions that operators by themselves are made of; see their folders for what they compute. Each function
here tells the numbers of its operator in the table, after the first, which is its name.
"""

import numpy as np
from numba import carray, njit, prange

from legato_engine.kernels.atomics import fetch_add, read, wait_until_zero
from legato_engine.kernels.attention import numba_float32 as attention
from legato_engine.kernels.linear.numba_int8 import FEW, GROUP, round_block
from legato_engine.kernels.linear.numba_int8_kinds import eight_rows, one_row
from legato_engine.kernels.linear.numba_int8_panels import ROWS
from legato_engine.kernels.linear.numba_scales import of_panel
from legato_engine.kernels.linear.packing import COLUMNS
from legato_engine.kernels.rms_norm.numba import norm_head, norm_row
from legato_engine.kernels.rope.numba import rotate_row
from legato_engine.kernels.scalar import float_of_bits
from legato_engine.kernels.silu_mul.numba import silu_mul_row
from legato_engine.kernels.vector import address, pointer

NORM, ROUND, MULTIPLY, ADD, NORM_HEADS, ROTATE, ATTEND, SILU_MUL = range(8)
FIELDS = 20
MOST = (FEW - 1) * ROWS  # rows of a step: products of more unpack codes in another way
PANELS = 4  # of 16 outputs: a task
_LINE = 8  # int64 in a line of the cache, so that counters do not share one


@njit(cache=True)
def _row(at, row, width):
    """A row of float32 [rows, width]."""
    return carray(pointer(at + row * width * 4), (width,), np.float32)


@njit(cache=True)
def _norm(operator, row):
    """x, residual, out: float32 [rows, width]; weight [width]; width; bits of epsilon."""
    _, x, residual, out, weight, width, eps = operator[:7]
    norm_row(
        _row(x, row, width),
        _row(residual, row, width),
        _row(weight, 0, width),
        float_of_bits(np.uint32(eps)),
        _row(out, row, width),
    )


@njit(cache=True)
def _rounded(whole, parts, groups, rows):
    """What is rounded for a product, as in `numba_int8.multiply`."""
    width = 1 if rows == 1 else ROWS
    blocks = (rows + width - 1) // width
    return (
        carray(pointer(whole), (blocks, groups, width, GROUP), np.int8),
        carray(pointer(parts), (blocks, groups, 2, width), np.float32),
    )


@njit(cache=True)
def _round(operator, rows, block):
    """x float32 [rows, groups · 32]; memory of rounded rows and of their scales; groups; whether codes have 4 bits."""
    _, x, whole, parts, groups, four = operator[:6]
    width = groups * GROUP
    codes, scales = _rounded(whole, parts, groups, rows)
    round_block(carray(pointer(x), (rows, width), np.float32), rows, block, four != 0, codes[block], scales[block])


@njit(cache=True)
def _multiply(kind, operator, rows, turn):
    """Memory of rounded rows and of their scales; codes; scales and their factors, minima and theirs; out; the groups
    of those four; panels; bytes from row to row of out; whether codes have 4 bits, and whether scales have 8.
    """
    values, factors, minima, least_factors = operator[4:8]
    groups, of_factor, of_minimum, of_least, panels = operator[9:14]
    shape, shape_2 = (panels, groups, COLUMNS), (panels, of_factor, COLUMNS)
    shape_3, shape_4 = (panels, of_minimum, COLUMNS), (panels, of_least, COLUMNS)
    of_values = carray(pointer(factors), shape_2, np.uint16), carray(pointer(least_factors), shape_4, np.uint16)
    if operator[16]:
        least = carray(pointer(minima), shape_3, np.int8)
        _panels(
            kind, operator, rows, turn, (carray(pointer(values), shape, np.int8), of_values[0], least, of_values[1])
        )
    else:
        least = carray(pointer(minima), shape_3, np.uint16)
        _panels(
            kind, operator, rows, turn, (carray(pointer(values), shape, np.uint16), of_values[0], least, of_values[1])
        )


@njit(cache=True)
def _panels(kind, operator, rows, turn, scales):
    whole, parts, codes = operator[1:4]
    out, groups, summed, panels = operator[8], operator[9], operator[11] > 0, operator[13]
    stride, four = operator[14], operator[15] != 0
    width = 1 if rows == 1 else ROWS
    for block in range((rows + width - 1) // width):
        at, part = whole + block * groups * width * GROUP, parts + block * groups * width * 8
        to = out + block * width * stride
        for panel in range(turn * PANELS, min(turn * PANELS + PANELS, panels)):
            code, of = codes + panel * groups * (256 if four else 512), of_panel(scales, panel)
            if width == 1:
                one_row(kind, at, part, code, four, of, summed, groups, to + panel * 64)
            else:
                left = rows - block * width
                eight_rows(kind, at, part, code, four, of, summed, groups, to + panel * 64, stride, left)


@njit(cache=True)
def _add(operator, row):
    """out float32 [rows, width]; what is added to each row, [width]; width."""
    _, out, bias, width = operator[:4]
    to, number = _row(out, row, width), _row(bias, 0, width)
    for i in range(width):
        to[i] += number[i]


@njit(cache=True)
def _norm_heads(operator, row):
    """qkv float32 [rows, all heads, dim]; weight [dim]; all heads; first and end of those; dim; bits of epsilon."""
    _, qkv, weight, heads, first, end, dim, eps = operator[:8]
    for head in range(first, end):
        norm_head(_row(qkv, row * heads + head, dim), _row(weight, 0, dim), float_of_bits(np.uint32(eps)))


@njit(cache=True)
def _rotate(operator, row, positions, slots, arena):
    """qkv; all heads and those of queries; dim; cos and sin [positions, dim/2]; layer."""
    _, qkv, heads, queries, dim, cos, sin, layer = operator[:8]
    at, slot, size = positions[row], slots[row], arena.shape[4]
    own = carray(pointer(qkv + row * heads * dim * 4), (heads, dim), np.float32)
    rotate_row(own, queries, _row(cos, at, dim // 2), _row(sin, at, dim // 2), arena[slot // size], layer, slot % size)


@njit(cache=True)
def _attend(operator, turn, rows, work, tables, arena, kept, done):
    """qkv; all heads and those of queries; dim; out float32 [rows, heads of queries, dim]; window; layer."""
    _, qkv, heads, queries, dim, out, window, layer = operator[:8]
    given = carray(pointer(qkv), (rows, heads, dim), np.float32)
    found = carray(pointer(out), (rows, queries, dim), np.float32)
    attention.work_off(turn, given, work, tables, window, arena, layer, kept, done, found)


@njit(cache=True)
def _silu_mul(operator, row):
    """gate_up float32 [rows, 2 · inner]; out [rows, inner]; inner."""
    _, gate_up, out, inner = operator[:4]
    silu_mul_row(_row(gate_up, row, 2 * inner), _row(out, row, inner))


@njit(cache=True)
def _tasks(operator, rows, of_attention):
    if operator[0] == MULTIPLY:
        return (operator[13] + PANELS - 1) // PANELS
    if operator[0] == ROUND:
        return (rows + ROWS - 1) // ROWS
    return of_attention if operator[0] == ATTEND else rows


@njit(cache=True)
def _compute(kind, operator, task, rows, positions, slots, arena):
    name = operator[0]
    if name == MULTIPLY:
        _multiply(kind, operator, rows, task)
    elif name == ROUND:
        _round(operator, rows, task)
    elif name == NORM:
        _norm(operator, task)
    elif name == SILU_MUL:
        _silu_mul(operator, task)
    elif name == ROTATE:
        _rotate(operator, task, positions, slots, arena)
    elif name == ADD:
        _add(operator, task)
    elif name == NORM_HEADS:
        _norm_heads(operator, task)


@njit(cache=True)
def _go_through(kind, table, turns, rows, positions, slots, work, tables, arena, kept, done):
    """What one thread does."""
    for index in range(len(table)):
        operator, turn = table[index], address(turns[index])
        tasks, busy = _tasks(operator, rows, len(work) * arena.shape[3]), turn + 8
        if read(turn) < tasks:
            fetch_add(busy, 1)  # before a task is taken: who finds none left and nobody busy knows that all are done
            if operator[0] == ATTEND:
                _attend(operator, turns[index], rows, work, tables, arena, kept, done[operator[7]])
            else:
                task = fetch_add(turn, 1)
                while task < tasks:
                    _compute(kind, operator, task, rows, positions, slots, arena)
                    task = fetch_add(turn, 1) if task + 1 < tasks else tasks
            fetch_add(busy, -1)
        wait_until_zero(busy)


@njit(cache=True, parallel=True, nogil=True)
def run(kind, table, positions, slots, work, tables, arena, threads):
    """`table` int64 [operators, FIELDS], addresses of memory with room for the rows of `positions` and `slots` int64
    [rows], up to a multiple of 8. `work`, `tables` and `arena` are those of `numba_float32.attention`, `kind` is one of
    `numba_int8_kinds`.
    """
    kv_heads, slots_of_parts = arena.shape[3], attention.slots_of(work)
    kept = np.empty((kv_heads, slots_of_parts, arena.shape[5] + 2), np.float32)
    done = np.zeros((arena.shape[1], kv_heads, slots_of_parts), np.int64)
    turns = np.zeros((len(table), _LINE), np.int64)
    for _ in prange(threads):
        _go_through(kind, table, turns, len(positions), positions, slots, work, tables, arena, kept, done)
