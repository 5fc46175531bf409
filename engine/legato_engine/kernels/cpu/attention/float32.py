"""Attention straight from an arena, computed in float32, for prompts and decoding rows alike: no gather.

`reference/attention.md` explains it. `tile` and `row` have the computations. Here threads share the work, and parts of
a sequence are joined. Runs on any processor, except for products in pairs (`pairs_tile`). The arena holds float32,
bfloat16 or e4m3; head_dim is a multiple of 32, block_size of 4.
"""

import numpy as np
from numba import njit, prange

from legato_engine.kernels.cpu.atomics import fetch_add
from legato_engine.kernels.cpu.attention import row as row_kernels
from legato_engine.kernels.cpu.attention import tile as tile_kernels
from legato_engine.kernels.cpu.attention.kv_registers import arrange, put_back
from legato_engine.kernels.cpu.attention.tile_lanes import LANES, mask
from legato_engine.kernels.cpu.simd.transpose import transpose
from legato_engine.kernels.cpu.simd.vector import address

POSITIONS = 64  # whose scores are computed, then used, while they are in the first cache
LEAST = np.float32(-3e38)  # of a score, but for -infinity
LOG2_E = np.float32(1.44269504)  # weights are powers of two


@njit(cache=True)
def _memory(lanes, dim):
    """A thread's memory, float32 at multiples of 64 bytes: queries and weighted values [lanes · dim], room for
    intermediate results [POSITIONS · dim], scores [POSITIONS · lanes], and three numbers for each lane [3, lanes];
    addresses of 4 positions each: keys, the next keys, and operands.
    """
    size, held = lanes * dim, POSITIONS * dim
    memory = np.empty(2 * size + held + (POSITIONS + 3) * lanes + 16, np.float32)
    memory = memory[-address(memory) % 64 // 4 :]
    scores = memory[2 * size + held :]
    of_lanes = scores[POSITIONS * lanes : (POSITIONS + 3) * lanes].reshape(3, lanes)
    room, addresses = memory[2 * size : 2 * size + held], np.zeros((3, POSITIONS // 4), np.int64)
    return memory[:size], memory[size : 2 * size], room, scores, of_lanes, addresses


@njit(cache=True)
def _find(arena, layer, kv_head, table, first, end, keys):
    """Writes the addresses of the keys of 4 positions each, for up to POSITIONS of `first … end - 1`."""
    if first >= end:
        return
    size, (by_block, by_head, by_layer, _, by_place, _) = arena.shape[4], arena.strides
    base = address(arena) + layer * by_layer + kv_head * by_head
    block, place = first // size, first % size  # once: divisions would cost as much as products
    key = base + table[block] * by_block + place * by_place
    for four in range((min(end - first, POSITIONS) + 3) // 4):
        if place == size:
            block, place = block + 1, 0
            key = base + table[block] * by_block
        keys[four] = key
        place += 4
        key += 4 * by_place


@njit(cache=True)
def _take(counter, work, tables, window, arena, layer, keys):
    """Takes the next task: returns its number, and writes the addresses of its first keys."""
    taken = fetch_add(address(counter), 1)
    if taken < len(work) * arena.shape[1]:
        task = work[taken % len(work)]
        begin = max(task.begin, task.start + 1 - window) // 4 * 4 if window else task.begin
        _find(arena, layer, taken // len(work), tables[task.row], begin, task.end, keys)
    return taken


@njit(cache=True)
def _scaled_queries(kv, qkv, key_factor, token, lane, lanes, shared, first_head, queries):
    """Writes the scaled queries of lanes `lane … lane + lanes - 1`, [lanes, dim], to the address `queries`."""
    dim = qkv.shape[2]
    scale = LOG2_E / np.sqrt(np.float32(dim)) * key_factor
    for i in range(lane, lane + lanes):
        head = (token + i // shared) * qkv.shape[1] + first_head + i % shared
        arrange(kv, address(qkv) + head * dim * 4, dim, scale, queries)
        queries += dim * 4


@njit(cache=True)
def _tile(kv, qkv, key_factor, task, shared, kv_head, tables, window, arena, layer, memory):
    """Computes some lanes of one row and KV head; the results are in the room of `memory`, [lanes, dim]."""
    dim, to_values, start, lane, lanes, end = (
        qkv.shape[2],
        arena.strides[3],
        task.start,
        task.lane,
        task.lanes,
        task.end,
    )
    queries, weighted, room, scores, (best, total, scale), (keys, following, numbers) = memory
    begins, ends = np.zeros(LANES, np.int64), np.full(LANES, end, np.int64)
    for i in range(lanes):
        ends[i] = start + (lane + i) // shared + 1
        begins[i] = max(0, ends[i] - window) if window else 0
    room[lanes * dim : LANES * dim] = np.float32(0)
    _scaled_queries(kv, qkv, key_factor, task.token, lane, lanes, shared, kv_head * shared, address(room))
    transpose(address(room), LANES, dim, address(queries))
    tile_kernels.pack_queries(kv, address(queries), dim)
    addresses = numbers, following, to_values
    best[:], total[:], weighted[:] = LEAST, np.float32(0), np.float32(0)
    begin = max(task.begin, begins[0] // 4 * 4)
    _find(arena, layer, kv_head, tables[task.row], begin, end, following)
    for first in range(begin, end, POSITIONS):
        keys[:] = following
        count = min(end - first, POSITIONS)
        _find(arena, layer, kv_head, tables[task.row], first + POSITIONS, end, following)
        tile_kernels.scores(kv, keys, addresses, count, dim, address(room), address(queries), address(scores))
        if first < begins[lanes - 1] or first + count > ends[0]:
            mask(scores[: POSITIONS * LANES].reshape(POSITIONS, LANES), first, count, begins, ends)
        tile_kernels.weigh(kv, address(scores), count, address(best), address(total), address(scale))
        weights, factor, into = address(scores), address(scale), address(weighted)
        tile_kernels.values(kv, keys, addresses, count, dim, address(room), weights, factor, into)
    transpose(address(weighted), dim, LANES, address(room))


@njit(cache=True)
def _row(kv, qkv, key_factor, task, shared, kv_head, counter, work, tables, window, arena, layer, memory):
    """Computes all heads of one token on a KV head; the results are in `memory`, [lanes, dim]. Returns the number of
    the next task, which is taken here so that its first keys are prefetched during the end of this task.
    """
    dim, to_values, begin, end = qkv.shape[2], arena.strides[3], task.begin, task.end
    queries, weighted, _, scores, (best, total, scale), (keys, following, _) = memory
    _scaled_queries(kv, qkv, key_factor, task.token, 0, shared, shared, kv_head * shared, address(queries))
    row_kernels.pack_queries(kv, address(queries), dim, shared)
    best[:], total[:], weighted[: (shared + 3) // 4 * 4 * dim] = LEAST, np.float32(0), np.float32(0)
    oldest = max(begin, task.start + 1 - window) if window else begin
    begin, taken = oldest // 4 * 4, 0
    if begin >= end:  # the window is behind this part
        return _take(counter, work, tables, window, arena, layer, following)
    _find(arena, layer, kv_head, tables[task.row], begin, end, following)
    for first in range(begin, end, POSITIONS):
        keys, following = following, keys
        count = min(end - first, POSITIONS)
        if first + POSITIONS < end:
            _find(arena, layer, kv_head, tables[task.row], first + POSITIONS, end, following)
        else:
            taken = _take(counter, work, tables, window, arena, layer, following)
        for head in range(0, shared, 4):
            lane, heads, at, part = head * 16, shared - head, address(queries) + head * dim * 4, head * dim * 4
            row_kernels.scores(kv, keys, following, count, dim, heads, at, address(scores))
            row_kernels.mask(scores, oldest - first, count)
            row_kernels.weigh(kv, address(scores), count, address(best) + lane, address(total) + lane, address(scale))
            at = address(scores), address(scale), address(weighted) + part
            row_kernels.values(kv, keys, following, to_values, count, dim, heads, *at)
    return taken


@njit(cache=True)
def _keep(best, total, weighted, kept):
    """Keeps the results of a part, [lanes, dim + 2]."""
    lanes, dim = kept.shape[0], weighted.shape[1]
    for i in range(lanes):
        for d in range(dim):
            kept[i, d] = weighted[i, d]
        kept[i, dim], kept[i, dim + 1] = best[i], total[i]


@njit(cache=True)
def _join(kept, best, total, weighted):
    """Joins all parts of kept [parts, lanes, dim + 2]."""
    parts, lanes, dim = kept.shape[0], kept.shape[1], kept.shape[2] - 2
    for i in range(lanes):
        best[i], total[i], weighted[i] = kept[:, i, dim].max(), np.float32(0), np.float32(0)
        for part in range(parts):
            scale = np.exp2(kept[part, i, dim] - best[i])
            total[i] += scale * kept[part, i, dim + 1]
            for d in range(dim):
                weighted[i, d] += scale * kept[part, i, d]


@njit(cache=True, error_model="numpy")  # a sum of weights may be 0 or NaN
def _finish(kv, task, shared, kv_head, value_factor, sinks, best, total, weighted, kept, done, out):
    """Writes weighted [lanes, dim], once the last of its parts is done, times `value_factor`. The sum of weights
    includes `sinks` [heads], if there are any.
    """
    dim = weighted.shape[1]
    token, lane, lanes, parts = task.token, task.lane, task.lanes, task.parts
    if parts:
        own = kept[kv_head, task.slot : task.slot + lanes * parts].reshape(parts, lanes, dim + 2)
        _keep(best, total, weighted, own[task.part])
        if fetch_add(address(done[kv_head, task.slot :]), 1) < parts - 1:
            return
        _join(own, best, total, weighted)
    for i in range(lanes):
        head = kv_head * shared + (lane + i) % shared
        if len(sinks):
            total[i] += np.exp2(sinks[head] * LOG2_E - best[i])
        at, scale = (token + (lane + i) // shared) * out.shape[1] + head, value_factor / total[i]
        put_back(kv, address(weighted) + i * dim * 4, dim, scale, address(out) + at * dim * 4)


@njit(cache=True)
def work_off(kv, counter, qkv, work, tables, window, arena, layer, factors, sinks, kept, done, out):
    """The loop of one thread: takes tasks until none is left."""
    dim, kv_heads = qkv.shape[2], arena.shape[1]
    shared = out.shape[1] // kv_heads
    for_tiles, for_rows = _memory(LANES, dim), _memory((shared + 3) // 4 * 16, dim)
    _, _, of_tile, _, (tile_best, tile_total, _), _ = for_tiles
    _, of_row, _, _, (row_best, row_total, _), _ = for_rows
    of_tile, of_row, row_best, row_total = (
        of_tile.reshape(-1, dim),
        of_row.reshape(-1, dim),
        row_best[::4],
        row_total[::4],
    )
    taken = fetch_add(address(counter), 1)
    while taken < len(work) * kv_heads:
        kv_head = taken // len(work)  # tiles of one head after another, while its keys are in the second cache
        task = work[taken % len(work)]
        key_factor, value_factor = factors[layer, 0, kv_head], factors[layer, 1, kv_head]
        if task.lanes == shared and task.lane == 0:
            taken = _row(
                kv, qkv, key_factor, task, shared, kv_head, counter, work, tables, window, arena, layer, for_rows
            )
            _finish(kv, task, shared, kv_head, value_factor, sinks, row_best, row_total, of_row, kept, done, out)
        else:
            _tile(kv, qkv, key_factor, task, shared, kv_head, tables, window, arena, layer, for_tiles)
            _finish(kv, task, shared, kv_head, value_factor, sinks, tile_best, tile_total, of_tile, kept, done, out)
            taken = fetch_add(address(counter), 1)


@njit(cache=True)
def slots_of(work):
    """Lanes of all parts that are joined."""
    slots = 1
    for index in range(len(work)):
        task = work[index]
        slots = max(slots, task.slot + task.lanes * task.parts)
    return slots


@njit(cache=True, parallel=True, nogil=True)
def attention(kv, qkv, work, tables, window, arena, layer, factors, sinks, threads, out):
    """All rows of a step, by `threads` threads.

    `kv` is the arena's tag; qkv float32 [tokens, heads + 2 · kv_heads, dim]; `work` PART [tasks], longest first; tables
    int64 [rows, blocks]; window 0 is none; arena float32, bfloat16 as uint16, or e4m3 as uint8, in KVLayout's shape;
    factors float32 [layers, 2, kv_heads], which keys and values are multiplied by; sinks float32 [heads], scores that
    only the sum of weights includes, or [0]; out float32 [tokens, heads, dim]. qkv and out are contiguous.
    """
    kv_heads = arena.shape[1]
    slots = slots_of(work)
    kept, done = np.empty((kv_heads, slots, qkv.shape[2] + 2), np.float32), np.zeros((kv_heads, slots), np.int64)
    counter = np.zeros(1, np.int64)
    for _ in prange(min(threads, len(work) * kv_heads)):
        work_off(kv, counter, qkv, work, tables, window, arena, layer, factors, sinks, kept, done, out)
