"""Attention straight from a bfloat16 arena, for prompts and decoding rows alike: no gather, no mask. See README.

Work is cut into tiles of 16 lanes; a lane is one query of one head, and the lanes of a tile share a KV head. Needs AMX,
a head_dim that is a multiple of 32 and a block_size that is a multiple of 16.
"""

import numpy as np
from numba import njit, prange

from legato_engine.kernels.scalar import exponential, narrowed
from legato_engine.kernels.vector import (
    broadcast,
    load_bf16,
    multiply_add,
    store,
    tile_configure,
    tile_dot_0,
    tile_load_4,
    tile_load_6,
    tile_release,
    tile_store_0,
    tile_zero_0,
    zero,
)

LANES = 16


@njit(cache=True, fastmath=True)
def _pack_queries(qkv, token, lane, lanes, shared, first_head, asked):
    """Scaled queries of lanes `lane … lane + lanes - 1` as bfloat16 [dim/2, 16, 2]."""
    dim = qkv.shape[2]
    scale = np.float32(1) / np.sqrt(np.float32(dim))
    for i in range(lanes):
        query = qkv[token + (lane + i) // shared, first_head + (lane + i) % shared]
        for d in range(dim):
            asked[d // 2, i, d % 2] = narrowed(query[d] * scale)


@njit(cache=True)
def _scores(arena, layer, kv_head, table, first, end, asked, scores):
    """scores [position - first, lane] of positions `first … end`, both rounded to 16."""
    size = arena.shape[4]
    width = arena.shape[5] * 2
    for position in range(first, end, 16):
        block = arena[table[position // size], layer, 0, kv_head]
        keys = block.ctypes.data + position % size * width
        tile_zero_0()
        for part in range(width // 64):
            tile_load_4(keys + part * 64, width)
            tile_load_6(asked.ctypes.data + part * 1024, 64)
            tile_dot_0()
        tile_store_0(scores.ctypes.data + (position - first) * 64, 64)


@njit(cache=True, fastmath=True)
def _softmax(scores, count, begins, ends, best, total):
    """Down each lane, over its own positions `begins … ends - 1`; the division is left for later (`total`)."""
    for lane in range(LANES):
        best[lane] = np.float32(-3e38)
        total[lane] = np.float32(0)
    for place in range(count):
        for lane in range(LANES):
            seen = begins[lane] <= place < ends[lane]
            value = scores[place, lane] if seen else np.float32(-3e38)
            scores[place, lane] = value
            best[lane] = value if value > best[lane] else best[lane]
    for place in range(count):
        for lane in range(LANES):
            seen = begins[lane] <= place < ends[lane]
            value = exponential(scores[place, lane] - best[lane])
            scores[place, lane] = value if seen else np.float32(0)
            total[lane] += scores[place, lane]


@njit(cache=True)
def _values(arena, layer, kv_head, table, first, count, lane, scores, found):
    """found [4, dim]: values weighed by the scores of lanes `lane … lane + 3`."""
    size = arena.shape[4]
    width = arena.shape[5]
    to = found.ctypes.data
    for part in range(0, width, 32):
        a0, a1, b0, b1, c0, c1, d0, d1 = zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()
        for begin in range(0, count, 16):
            block = arena[table[(first + begin) // size], layer, 1, kv_head]
            value = block.ctypes.data + ((first + begin) % size * width + part) * 2
            weight = scores.ctypes.data + begin * 64 + lane * 4
            for _ in range(min(16, count - begin)):
                left = load_bf16(value)
                right = load_bf16(value + 32)
                by = broadcast(weight)
                a0, a1 = multiply_add(by, left, a0), multiply_add(by, right, a1)
                by = broadcast(weight + 4)
                b0, b1 = multiply_add(by, left, b0), multiply_add(by, right, b1)
                by = broadcast(weight + 8)
                c0, c1 = multiply_add(by, left, c0), multiply_add(by, right, c1)
                by = broadcast(weight + 12)
                d0, d1 = multiply_add(by, left, d0), multiply_add(by, right, d1)
                value += width * 2
                weight += 64
        at = to + part * 4
        store(at, a0)
        store(at + 64, a1)
        store(at + width * 4, b0)
        store(at + width * 4 + 64, b1)
        store(at + width * 8, c0)
        store(at + width * 8 + 64, c1)
        store(at + width * 12, d0)
        store(at + width * 12 + 64, d1)


@njit(cache=True)
def _tile(qkv, token, start, lane, lanes, shared, kv_head, table, window, arena, layer, out):
    """Lanes `lane … lane + lanes - 1` of one row and KV head."""
    dim = qkv.shape[2]
    oldest = start + lane // shared
    newest = start + (lane + lanes - 1) // shared
    first = max(0, oldest - window + 1) // 16 * 16 if window else 0
    count = newest + 1 - first
    asked = np.zeros((dim // 2, LANES, 2), np.uint16)
    scores = np.empty(((count + 15) // 16 * 16, LANES), np.float32)
    begins, ends = np.zeros(LANES, np.int32), np.zeros(LANES, np.int32)
    best, total = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    found = np.empty((4, dim), np.float32)
    for i in range(lanes):
        ends[i] = start + (lane + i) // shared + 1 - first
        begins[i] = max(0, ends[i] - window) if window else 0
    _pack_queries(qkv, token, lane, lanes, shared, kv_head * shared, asked)
    _scores(arena, layer, kv_head, table, first, newest + 1, asked, scores)
    _softmax(scores, count, begins, ends, best, total)
    for four in range(0, lanes, 4):
        _values(arena, layer, kv_head, table, first, count, four, scores, found)
        for i in range(four, min(four + 4, lanes)):
            target = out[token + (lane + i) // shared, kv_head * shared + (lane + i) % shared]
            for d in range(dim):
                target[d] = found[i - four, d] / total[i]


@njit(cache=True, parallel=True)
def attention(qkv, work, tables, window, shapes, arena, layer, out):
    """All rows of a step.

    qkv float32 [tokens, heads + 2 · kv_heads, dim]; `work` int64 [tiles, 5] of (row, its first token, its start
    position, first lane, lanes), longest first; tables int64 [rows, blocks]; window 0 is none; `shapes` those of
    tiles; arena uint16 in KVLayout's shape; out float32 [tokens, heads, dim].
    """
    kv_heads = arena.shape[3]
    shared = out.shape[1] // kv_heads
    for task in prange(work.shape[0] * kv_heads):
        row, token, start, lane, lanes = work[task // kv_heads]
        tile_configure(shapes.ctypes.data)
        _tile(qkv, token, start, lane, lanes, shared, task % kv_heads, tables[row], window, arena, layer, out)
        tile_release()
