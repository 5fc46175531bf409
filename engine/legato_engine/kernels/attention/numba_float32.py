"""Attention straight from a float32 arena, for prompts and decoding rows alike: no gather, no copies of KV. See README.

What is computed stands in `numba_float32_tile` and `numba_float32_row`. Here the work is dealt to threads, and parts of
a sequence are joined. Any processor; head_dim is a multiple of 32, block_size of 4.
"""

import numpy as np
from numba import njit, prange

from legato_engine.kernels.atomics import fetch_add
from legato_engine.kernels.attention import numba_float32_row as row_kernels
from legato_engine.kernels.attention import numba_float32_tile as tile_kernels
from legato_engine.kernels.vector import address

LANES = tile_kernels.LANES
POSITIONS = 64  # whose scores are computed, then used, while they are in the first cache
LEAST = np.float32(-3e38)  # of a score, but for -infinity
LOG2_E = np.float32(1.44269504)  # weights are powers of two


@njit(cache=True)
def _room(lanes, dim):
    """What one thread computes in, at multiples of 64 bytes: queries, what was found [lanes · dim], scores
    [POSITIONS · lanes], and three numbers for each lane [3, lanes].
    """
    size = lanes * dim
    memory = np.empty(2 * size + (POSITIONS + 3) * lanes + 16, np.float32)
    begin = -address(memory) % 64 // 4
    memory = memory[begin : begin + 2 * size + (POSITIONS + 3) * lanes]
    own = memory[2 * size :]
    return memory[:size], memory[size : 2 * size], own[3 * lanes :], own[: 3 * lanes].reshape(3, lanes)


@njit(cache=True)
def _find(arena, layer, kv_head, table, first, end, keys):
    """The addresses of the keys of 4 positions each, `first … end - 1`; returns how far from them values are."""
    size, (by_block, by_layer, to_values, by_head, by_place, _) = arena.shape[4], arena.strides
    base = address(arena) + layer * by_layer + kv_head * by_head
    for four in range((end - first + 3) // 4):
        position = first + four * 4
        keys[four] = base + table[position // size] * by_block + position % size * by_place
    return to_values


@njit(cache=True)
def _scaled_queries(qkv, token, lane, lanes, shared, first_head, asked):
    """Queries of lanes `lane … lane + lanes - 1` as [lanes, dim]; `asked` may be a transposed view."""
    asked[:] = np.float32(0)
    scale = LOG2_E / np.sqrt(np.float32(qkv.shape[2]))
    for i in range(lanes):
        query = qkv[token + (lane + i) // shared, first_head + (lane + i) % shared]
        for d in range(qkv.shape[2]):
            asked[i, d] = query[d] * scale


@njit(cache=True)
def _tile(qkv, token, start, lane, lanes, shared, kv_head, table, begin, end, window, arena, layer, room):
    """Lanes `lane … lane + lanes - 1` of one row and KV head, over positions `begin … end - 1`."""
    dim = qkv.shape[2]
    asked, found, scores, (best, total, scale) = room
    begins, ends = np.zeros(LANES, np.int64), np.full(LANES, end, np.int64)
    for i in range(lanes):
        ends[i] = start + (lane + i) // shared + 1
        begins[i] = max(0, ends[i] - window) if window else 0
    _scaled_queries(qkv, token, lane, lanes, shared, kv_head * shared, asked.reshape(dim, LANES).T)
    best[:], total[:], found[:] = LEAST, np.float32(0), np.float32(0)
    keys, following = np.zeros(POSITIONS // 4, np.int64), np.zeros(POSITIONS // 4, np.int64)
    begin = max(begin, begins[0] // 4 * 4)
    to_values = _find(arena, layer, kv_head, table, begin, min(begin + POSITIONS, end), following)
    for first in range(begin, end, POSITIONS):
        keys[:] = following
        count = min(end - first, POSITIONS)
        _find(arena, layer, kv_head, table, first + POSITIONS, min(first + 2 * POSITIONS, end), following)
        tile_kernels.scores(keys, following, to_values, count, dim, address(asked), address(scores))
        if first < begins[lanes - 1] or first + count > ends[0]:
            tile_kernels.mask(scores.reshape(POSITIONS, LANES), first, count, begins, ends)
        tile_kernels.weigh(address(scores), count, address(best), address(total), address(scale))
        tile_kernels.values(keys, to_values, count, dim, address(scores), address(scale), address(found))


@njit(cache=True)
def _row(qkv, token, start, shared, kv_head, table, begin, end, window, arena, layer, room):
    """All heads of one token on a KV head, over positions `begin … end - 1`."""
    dim = qkv.shape[2]
    asked, found, scores, (best, total, scale) = room
    _scaled_queries(qkv, token, 0, shared, shared, kv_head * shared, asked.reshape(-1, dim))
    best[:], total[:], found[:] = LEAST, np.float32(0), np.float32(0)
    keys, following = np.zeros(POSITIONS // 4, np.int64), np.zeros(POSITIONS // 4, np.int64)
    oldest = max(begin, start + 1 - window) if window else begin
    begin = oldest // 4 * 4
    to_values = _find(arena, layer, kv_head, table, begin, min(begin + POSITIONS, end), following)
    for first in range(begin, end, POSITIONS):
        keys[:] = following
        count = min(end - first, POSITIONS)
        _find(arena, layer, kv_head, table, first + POSITIONS, min(first + 2 * POSITIONS, end), following)
        for head in range(0, shared, 4):
            query, part = address(asked) + head * dim * 4, address(found) + head * dim * 4
            row_kernels.scores(keys, to_values, count, dim, query, address(scores))
            row_kernels.mask(scores, oldest - first, count)
            lane = head * 16
            row_kernels.weigh(address(scores), count, address(best) + lane, address(total) + lane, address(scale))
            row_kernels.values(keys, following, to_values, count, dim, address(scores), address(scale), part)


@njit(cache=True)
def _keep(best, total, found, kept):
    """What a part has found, kept [lanes, dim + 2]."""
    lanes, dim = kept.shape[0], found.shape[1]
    for i in range(lanes):
        kept[i, :dim] = found[i]
        kept[i, dim], kept[i, dim + 1] = best[i], total[i]


@njit(cache=True)
def _join(kept, total, found):
    """All parts of kept [parts, lanes, dim + 2]."""
    parts, lanes, dim = kept.shape[0], kept.shape[1], kept.shape[2] - 2
    for i in range(lanes):
        best = kept[:, i, dim].max()
        total[i], found[i] = np.float32(0), np.float32(0)
        for part in range(parts):
            scale = np.exp2(kept[part, i, dim] - best)
            total[i] += scale * kept[part, i, dim + 1]
            for d in range(dim):
                found[i, d] += scale * kept[part, i, d]


@njit(cache=True, error_model="numpy")  # a sum of weights may be 0 or no number
def _finish(token, lane, lanes, shared, kv_head, best, total, found, part, kept, done, out):
    """Writes found [lanes, dim], once the last of its parts is done."""
    parts = len(kept)
    if parts:
        _keep(best, total, found, kept[part])
        if fetch_add(address(done), 1) < parts - 1:
            return
        _join(kept, total, found)
    for i in range(lanes):
        target = out[token + (lane + i) // shared, kv_head * shared + (lane + i) % shared]
        scale = np.float32(1) / total[i]
        for d in range(len(target)):
            target[d] = found[i, d] * scale


@njit(cache=True)
def _work(turn, qkv, work, tables, window, arena, layer, kept, done, out):
    """What one thread does: whatever is next."""
    dim, kv_heads = qkv.shape[2], arena.shape[3]
    shared = out.shape[1] // kv_heads
    for_tiles, for_rows = _room(LANES, dim), _room((shared + 3) // 4 * 16, dim)
    while True:
        task = fetch_add(address(turn), 1)
        if task >= len(work) * kv_heads:
            return
        kv_head = task // len(work)  # tiles of one head after another, while its keys are in the second cache
        row, token, start, lane, lanes, begin, end, part, parts, slot = work[task % len(work)]
        own = kept[kv_head, slot : slot + lanes * parts].reshape(parts, lanes, dim + 2)
        count = done[kv_head, slot : slot + 1]
        if lanes == shared and lane == 0:
            _row(qkv, token, start, shared, kv_head, tables[row], begin, end, window, arena, layer, for_rows)
            _, found, _, (best, total, _) = for_rows
            best, total, of_lanes = best[::4], total[::4], found.reshape(-1, dim)
            _finish(token, lane, lanes, shared, kv_head, best, total, of_lanes, part, own, count, out)
        else:
            table = tables[row]
            _tile(qkv, token, start, lane, lanes, shared, kv_head, table, begin, end, window, arena, layer, for_tiles)
            _, found, _, (best, total, _) = for_tiles
            turned = found.reshape(dim, LANES).T
            _finish(token, lane, lanes, shared, kv_head, best, total, turned, part, own, count, out)


@njit(cache=True, parallel=True, nogil=True)
def attention(qkv, work, tables, window, arena, layer, threads, out):
    """All rows of a step, by `threads` threads.

    qkv float32 [tokens, heads + 2 · kv_heads, dim]; `work` int64 [tasks, 10], longest first, of (row, its first token,
    its start position, first lane, lanes, first position, end; part, parts, slot): where a tile is not in one piece,
    `parts` is not 0 and `slot` counts the lanes of all parts before those of this tile. tables int64 [rows, blocks];
    window 0 is none; arena float32 in KVLayout's shape; out float32 [tokens, heads, dim].
    """
    kv_heads = arena.shape[3]
    slots = 1
    for task in range(len(work)):
        slots = max(slots, work[task, 9] + work[task, 4] * work[task, 8])
    kept, done = np.empty((kv_heads, slots, qkv.shape[2] + 2), np.float32), np.zeros((kv_heads, slots), np.int64)
    turn = np.zeros(1, np.int64)
    for _ in prange(min(threads, len(work) * kv_heads)):
        _work(turn, qkv, work, tables, window, arena, layer, kept, done, out)
