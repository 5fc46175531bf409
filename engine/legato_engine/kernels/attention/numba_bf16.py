"""Attention straight from a bfloat16 arena, for prompts and decoding rows alike: no gather, no mask. See README.

Work is cut into tiles of 16 lanes; a lane is one query of one head, and the lanes of a tile share a KV head. Needs AMX,
a head_dim that is a multiple of 32 and a block_size that is a multiple of 16.
"""

import numpy as np
from numba import njit, prange

from legato_engine.kernels.atomics import fetch_add
from legato_engine.kernels.scalar import RELAXED, exponential, narrowed, stored, widened
from legato_engine.kernels.vector import (
    address,
    interleave_high,
    interleave_low,
    load,
    store,
    tile_configure,
    tile_dot_0,
    tile_dot_1,
    tile_load_4,
    tile_load_6,
    tile_load_7,
    tile_release,
    tile_store_0,
    tile_store_1,
    tile_zero_0,
    tile_zero_1,
    zero,
)

LANES = 16


@njit(cache=True, fastmath=RELAXED)
def _pack_queries(qkv, token, lane, lanes, shared, first_head, asked):
    """Scaled queries of lanes `lane … lane + lanes - 1` as bfloat16 [dim/2, 16, 2]."""
    dim = qkv.shape[2]
    scale = np.float32(1) / np.sqrt(np.float32(dim))
    for i in range(lanes):
        query = qkv[token + (lane + i) // shared, first_head + (lane + i) % shared]
        for d in range(dim):
            asked[d // 2, i, d % 2] = narrowed(query[d] * scale)


@njit(cache=True)
def _scores(arena, layer, kv_head, table, first, end, asked, lanes, scores):
    """scores [lane, position - first] of positions `first … end`, both rounded to 16."""
    size = arena.shape[4]
    width = arena.shape[5] * 2
    turned = np.empty((16, LANES), np.float32)  # as tiles leave them: [position, lane]
    for position in range(first, end, 16):
        block = arena[table[position // size], layer, 0, kv_head]
        keys = address(block) + position % size * width
        tile_zero_0()
        for part in range(width // 64):
            tile_load_4(keys + part * 64, width)
            tile_load_6(address(asked) + part * 1024, 64)
            tile_dot_0()
        tile_store_0(address(turned), 64)
        for lane in range(lanes):
            for i in range(16):
                scores[lane, position - first + i] = turned[i, lane]


@njit(cache=True, fastmath=RELAXED)
def _softmax(scores, weights):
    """Weights as bfloat16, and their sum, which is still to be divided by."""
    best = np.float32(-np.inf)
    for i in range(scores.shape[0]):
        best = max(best, scores[i])
    for i in range(scores.shape[0]):
        weights[i] = narrowed(exponential(scores[i] - best))
    total = np.float32(0)
    for i in range(scores.shape[0]):
        total += widened(weights[i])
    return total


@njit(cache=True)
def _pair_values(value, width, seen, pairs):
    """Two weight tiles [8 pairs of positions, 16, 2] from 32 dimensions of 16 positions, of which the first `seen`
    count: what others hold may be no number.
    """
    for place in range(0, 16, 2):
        first = zero()
        second = zero()
        if place < seen:
            first = load(value + place * width)
        if place + 1 < seen:
            second = load(value + (place + 1) * width)
        store(pairs + place * 32, interleave_low(first, second))
        store(pairs + 1024 + place * 32, interleave_high(first, second))


@njit(cache=True)
def _values(arena, layer, kv_head, table, first, count, weights, found):
    """found [16 lanes, dim]: values weighed by `weights` [lane, position - first], positions rounded to 32."""
    size = arena.shape[4]
    width = arena.shape[5] * 2
    pairs = np.empty((2, 16, 16, 2), np.uint16)
    to = address(pairs)
    for part in range(0, width, 64):
        tile_zero_0()
        tile_zero_1()
        for begin in range(0, weights.shape[1], 32):
            for half in range(begin, begin + 32, 16):
                at = first + min(half, count - 1) // 16 * 16
                block = arena[table[at // size], layer, 1, kv_head]
                value = address(block) + at % size * width + part
                _pair_values(value, width, count - half, to + (half - begin) * 32)
            tile_load_4(address(weights) + begin * 2, weights.shape[1] * 2)
            tile_load_6(to, 64)
            tile_dot_0()
            tile_load_7(to + 1024, 64)
            tile_dot_1()
        tile_store_0(address(found) + part * 2, width * 2)
        tile_store_1(address(found) + part * 2 + 64, width * 2)


@njit(cache=True, error_model="numpy")  # a sum of weights may be no number
def _tile(qkv, token, start, lane, lanes, shared, kv_head, table, window, arena, layer, out):
    """Lanes `lane … lane + lanes - 1` of one row and KV head."""
    dim = qkv.shape[2]
    oldest = start + lane // shared
    newest = start + (lane + lanes - 1) // shared
    first = max(0, oldest - window + 1) // 16 * 16 if window else 0
    count = newest + 1 - first
    room = (count + 31) // 32 * 32
    asked = np.zeros((dim // 2, LANES, 2), np.uint16)
    scores, weights = np.empty((LANES, room), np.float32), np.empty((LANES, room), np.uint16)
    total, found = np.empty(LANES, np.float32), np.empty((LANES, dim), np.float32)
    _pack_queries(qkv, token, lane, lanes, shared, kv_head * shared, asked)
    _scores(arena, layer, kv_head, table, first, newest + 1, asked, lanes, scores)
    for i in range(lanes):
        end = start + (lane + i) // shared + 1 - first
        begin = max(0, end - window) if window else 0
        weights[i, :begin] = 0
        weights[i, end:] = 0
        total[i] = _softmax(scores[i, begin:end], weights[i, begin:end])
    _values(arena, layer, kv_head, table, first, count, weights, found)
    for i in range(lanes):
        target = out[token + (lane + i) // shared, kv_head * shared + (lane + i) % shared]
        scale = np.float32(1) / total[i]
        for d in range(dim):
            target[d] = stored(found[i, d] * scale, target)


@njit(cache=True)
def _work_off(turn, qkv, work, tables, window, shapes, arena, layer, out):
    """What one thread does: whatever is next."""
    kv_heads = arena.shape[3]
    shared = out.shape[1] // kv_heads
    tile_configure(address(shapes))
    while True:
        turned = fetch_add(address(turn), 1)
        if turned >= len(work) * kv_heads:
            break
        kv_head = turned // len(work)  # tiles of one head after another, while its keys are in the second cache
        row, token, start, lane, lanes = work[turned % len(work)]
        _tile(qkv, token, start, lane, lanes, shared, kv_head, tables[row], window, arena, layer, out)
    tile_release()


@njit(cache=True, parallel=True, nogil=True)
def attention(qkv, work, tables, window, shapes, arena, layer, threads, out):
    """All rows of a step, by `threads` threads.

    qkv float32 [tokens, heads + 2 · kv_heads, dim]; `work` int64 [tiles, 5] of (row, its first token, its start
    position, first lane, lanes), longest first; tables int64 [rows, blocks]; window 0 is none; `shapes` those of
    tiles; arena uint16 in KVLayout's shape; out [tokens, heads, dim], bfloat16 as uint16, or float32.
    """
    turn = np.zeros(1, np.int64)
    for _ in prange(min(threads, len(work) * arena.shape[3])):
        _work_off(turn, qkv, work, tables, window, shapes, arena, layer, out)
