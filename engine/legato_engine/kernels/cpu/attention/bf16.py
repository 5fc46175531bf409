"""Attention straight from a bfloat16 arena, for prompts and decoding rows alike: no gather.

`reference/attention.md` explains it. `bf16_tile` and `bf16_lanes` have the computations; here threads share the work. A
tile is up to 32 lanes; a lane is one query of one head, and the lanes of a tile share a KV head. Needs AMX, a head_dim
that is a multiple of 32 and a block_size that is a multiple of 16.
"""

import numpy as np
from numba import carray, njit, prange

from legato_engine.kernels.cpu.atomics import fetch_add
from legato_engine.kernels.cpu.attention import bf16_lanes as of_lanes
from legato_engine.kernels.cpu.attention import bf16_tile as products
from legato_engine.kernels.cpu.attention.bf16_lanes import GROUP, LANES, LINE
from legato_engine.kernels.cpu.attention.bf16_tile import POSITIONS
from legato_engine.kernels.cpu.attention.tile_lanes import mask
from legato_engine.kernels.cpu.simd.vector import address, pointer, tile_configure, tile_release

LEAST = np.float32(-3e38)  # of a score, but for -infinity
LOG2_E = np.float32(1.44269504)  # weights are powers of two


@njit(cache=True)
def _memory(dim):
    """A thread's memory and the addresses of its parts: queries; of each lane the largest score, the scale, sums of its
    weights and its weighted values; scores; room for weights, pairs of values and transposed scores. Addresses, because
    numba counts references to arrays whenever they are passed on.
    """
    size = (3 * dim // 2 + max(POSITIONS, dim // 4) + POSITIONS + 2 * GROUP + 2) * LANES
    memory = np.empty(size + 16, np.float32)
    queries = address(memory) + -address(memory) % 64
    best = queries + dim // 2 * LINE
    total = best + 2 * LINE
    weighted = total + GROUP * LINE
    scores = weighted + dim * LINE
    weights = scores + max(POSITIONS, dim // 4) * LINE  # at first, queries are transposed there
    pairs = weights + POSITIONS // 2 * LINE
    transposed = pairs + POSITIONS // 2 * LINE
    return memory, (queries, (best, best + LINE, total, weighted), scores, (weights, pairs, transposed))


@njit(cache=True)
def _find(arena, layer, kv_head, table, first, end, keys):
    """Writes the addresses of 16 keys each, for POSITIONS positions from `first` on; the last repeats after `end`."""
    size, (by_block, by_head, by_layer, _, by_place, _) = arena.shape[4], arena.strides
    base = address(arena) + layer * by_layer + kv_head * by_head
    for half in range((min(end - first, POSITIONS) + 31) // 32 * 2):
        position = min(first + half * 16, (end - 1) // 16 * 16)
        keys[half] = base + table[position // size] * by_block + position % size * by_place


@njit(cache=True)
def _find_upcoming(counter, work, shared, tables, window, arena, layer, keys):
    """Finds the keys of the next tile in the list, which this thread may take."""
    task = fetch_add(address(counter), 0)
    if task < len(work) * arena.shape[1]:
        tile = work[task % len(work)]
        begin = max(0, tile.start + tile.lane // shared + 1 - window) // 16 * 16 if window else 0
        end = tile.start + (tile.lane + tile.lanes - 1) // shared + 1
        _find(arena, layer, task // len(work), tables[tile.row], begin, end, keys)


@njit(cache=True)
def _pack_queries(qkv, task, shared, first_head, room, queries):
    """Packs the queries of a tile's lanes, one group after the other."""
    dim = qkv.shape[2]
    token, lane, lanes = task.token, task.lane, task.lanes
    for group in range(0, lanes, GROUP):
        for i in range(min(GROUP, lanes - group)):
            at = lane + group + i
            query = address(qkv) + ((token + at // shared) * qkv.shape[1] + first_head + at % shared) * dim * 4
            of_lanes.pack_query(query, dim, LOG2_E / np.sqrt(np.float32(dim)), room + i * 64)
        of_lanes.transpose_queries(room, dim, queries + group * dim * 2)


@njit(cache=True)
def _see(start, lane, lanes, shared, window, begins, ends):
    """Writes the positions that each lane sees, from and to; unused lanes see the same as the last used one."""
    for i in range(LANES):
        ends[i] = start + (lane + min(i, lanes - 1)) // shared + 1
        begins[i] = max(0, ends[i] - window) if window else 0


@njit(cache=True)
def _mask(scores, first, count, begins, ends):
    """Masks the positions among `count` that some lanes do not see, at the beginning and at the end."""
    early, late = min(count, begins[LANES - 1] - first), max(0, ends[0] - first)
    lines = carray(pointer(scores), (count, LANES), np.float32)
    if early > 0:
        mask(lines, first, early, begins, ends)
    if late < count:
        mask(lines[late:], first + late, count - late, begins, ends)


@njit(cache=True)
def _begin(dim, groups, results):
    """Resets the results."""
    best, _, total, _ = results
    carray(pointer(best), LANES, np.float32)[:] = LEAST
    carray(pointer(total), LANES * GROUP + groups * GROUP * dim, np.float32)[:] = 0  # `weighted` follows it


@njit(cache=True)
def _weigh(scores, count, lanes, dim, results, rooms):
    """Converts scores to weights, and scales earlier results."""
    best, scale, total, weighted = results
    weights, _, transposed = rooms
    for group in range(0, lanes, GROUP):
        at, used, sums = group * 4, min(GROUP, lanes - group), total + group * GROUP * 4
        of_lanes.raise_best(scores + at, count, best + at, scale + at)
        of_lanes.rescale(scale + at, used, dim, sums, weighted + at * dim)
        of_lanes.weigh(scores + at, count, used, best + at, sums, transposed, weights + group // GROUP * POSITIONS * 32)


@njit(cache=True)
def _put_back(task, shared, kv_head, dim, sinks, results, out):
    token, lane, lanes = task.token, task.lane, task.lanes
    best, _, total, weighted = results
    for i in range(lanes):
        head, sums = kv_head * shared + (lane + i) % shared, total + i * GROUP * 4
        if len(sinks):  # to any of a lane's sums
            most = carray(pointer(best + i * 4), 1, np.float32)[0]
            carray(pointer(sums), 1, np.float32)[0] += np.exp2(sinks[head] * LOG2_E - most)
        at = (token + (lane + i) // shared) * out.shape[1] + head
        of_lanes.put_back(weighted + i * dim * 4, sums, dim, address(out) + at * dim * 2)


@njit(cache=True)
def _tile(qkv, task, shared, kv_head, counter, work, tables, window, arena, layer, sinks, memory, of_positions, out):
    """Computes some lanes of one row and KV head. of_positions int64: the addresses of 16 keys each, the addresses of
    the next keys, and the positions that each lane sees, from and to.
    """
    dim, to_values, lanes = qkv.shape[2], arena.strides[3], task.lanes
    queries, results, scores, (weights, pairs, transposed) = memory
    keys, following, begins, ends = of_positions
    groups, table = (lanes + GROUP - 1) // GROUP, tables[task.row]
    _begin(dim, groups, results)
    _pack_queries(qkv, task, shared, kv_head * shared, scores, queries)
    _see(task.start, task.lane, lanes, shared, window, begins, ends)
    begin, end = begins[0] // 16 * 16, ends[LANES - 1]
    _find(arena, layer, kv_head, table, begin, end, following)
    for first in range(begin, end, POSITIONS):
        keys[:] = following
        count = min(end - first, POSITIONS)
        if first + POSITIONS < end:
            _find(arena, layer, kv_head, table, first + POSITIONS, end, following)
        else:
            _find_upcoming(counter, work, shared, tables, window, arena, layer, following)
        products.scores(keys, following, to_values, count, dim, groups, queries, scores)
        _mask(scores, first, (count + 31) // 32 * 32, begins, ends)
        _weigh(scores, count, lanes, dim, results, (weights, pairs, transposed))
        products.values(keys, to_values, count, dim, groups, weights, pairs, results[3])
    _put_back(task, shared, kv_head, dim, sinks, results, out)


@njit(cache=True)
def _work_off(counter, qkv, work, tables, window, shapes, arena, layer, sinks, out):
    """The loop of one thread: takes tasks until none is left."""
    kv_heads = arena.shape[1]
    shared, (memory, parts) = out.shape[1] // kv_heads, _memory(qkv.shape[2])
    addresses, seen = np.zeros((2, POSITIONS // 16), np.int64), np.zeros((2, LANES), np.int64)
    of_positions = addresses[0], addresses[1], seen[0], seen[1]
    tile_configure(address(shapes))
    while True:
        taken = fetch_add(address(counter), 1)
        if taken >= len(work) * kv_heads:
            break
        kv_head = taken // len(work)  # tiles of one head after another, while its keys are in the second cache
        task = work[taken % len(work)]
        _tile(qkv, task, shared, kv_head, counter, work, tables, window, arena, layer, sinks, parts, of_positions, out)
    tile_release()
    memory[0] = 0  # keeps it alive until here


@njit(cache=True, parallel=True, nogil=True)
def attention(qkv, work, tables, window, shapes, arena, layer, sinks, threads, out):
    """All rows of a step, by `threads` threads.

    qkv float32 [tokens, heads + 2 · kv_heads, dim]; `work` TILE [tiles], longest first; tables int64 [rows, blocks];
    window 0 is none; `shapes` is SHAPES of `linear.bf16_tiles`; arena uint16 (bfloat16) in KVLayout's shape; sinks
    float32 [heads], scores that only the sum of weights includes, or [0]; out uint16 [tokens, heads, dim]. qkv and out
    are contiguous.
    """
    counter = np.zeros(1, np.int64)
    for _ in prange(min(threads, len(work) * arena.shape[1])):
        _work_off(counter, qkv, work, tables, window, shapes, arena, layer, sinks, out)
