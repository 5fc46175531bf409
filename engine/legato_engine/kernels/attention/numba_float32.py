"""Attention straight from a float32 arena, for prompts and decoding rows alike: no gather, no mask. See README.

Work is cut into tiles of 16 lanes; a lane is one query of one head, and the lanes of a tile share a KV head. Any
processor; head_dim is a multiple of 32, block_size of 4.
"""

import numpy as np
from numba import njit, prange

from legato_engine.kernels.lanes import across, prefetch
from legato_engine.kernels.scalar import RELAXED, exponential
from legato_engine.kernels.vector import broadcast, load, multiply_add, store, zero

LANES = 16
FEW = 4  # lanes of a decoding row: as many dot products with each key, without turning anything


@njit(cache=True, fastmath=RELAXED)
def _turned_queries(qkv, token, lane, lanes, shared, first_head, asked):
    """Scaled queries of lanes `lane … lane + lanes - 1` as [dim, 16]."""
    dim = qkv.shape[2]
    scale = np.float32(1) / np.sqrt(np.float32(dim))
    for i in range(lanes):
        query = qkv[token + (lane + i) // shared, first_head + (lane + i) % shared]
        for d in range(dim):
            asked[d, i] = query[d] * scale


@njit(cache=True)
def _scores(arena, layer, kv_head, table, first, end, asked, scores):
    """scores [position - first, lane] of positions `first … end`, both rounded to 4."""
    size, dim = arena.shape[4], arena.shape[5]
    width = dim * 4
    for position in range(first, end, 4):
        key = arena[table[position // size], layer, 0, kv_head].ctypes.data + position % size * width
        query = asked.ctypes.data
        a, b, c, d = zero(), zero(), zero(), zero()
        for _ in range(dim):
            by = load(query)
            a = multiply_add(by, broadcast(key), a)
            b = multiply_add(by, broadcast(key + width), b)
            c = multiply_add(by, broadcast(key + 2 * width), c)
            d = multiply_add(by, broadcast(key + 3 * width), d)
            query += 64
            key += 4
        at = scores.ctypes.data + (position - first) * 64
        store(at, a)
        store(at + 64, b)
        store(at + 128, c)
        store(at + 192, d)


@njit(cache=True, fastmath=RELAXED)
def _softmax(scores, count, begins, ends, best, total):
    """Down each lane, over its own positions `begins … ends - 1`; the division is left for later (`total`)."""
    for lane in range(LANES):
        best[lane] = np.float32(-3e38)
        total[lane] = np.float32(0)
    for place in range(count):
        line = scores[place]
        for lane in range(LANES):
            seen = (begins[lane] <= place) & (place < ends[lane])
            value = line[lane] if seen else np.float32(-3e38)
            line[lane] = value
            best[lane] = max(value, best[lane])
    for place in range(count):
        line = scores[place]
        for lane in range(LANES):
            # What is not seen is at -3e38. NaN is not below anything, and stays.
            value = np.float32(0) if line[lane] < np.float32(-2e38) else exponential(line[lane] - best[lane])
            line[lane] = value
            total[lane] += value


@njit(cache=True)
def _scores_few(arena, layer, kv_head, table, first, end, asked, scores):
    """scores [lane, position - first] of positions `first … end - 1`; asked [4, dim]."""
    size, dim = arena.shape[4], arena.shape[5]
    width = dim * 4
    position = first
    while position < end:
        block = position // size
        key = arena[table[block], layer, 0, kv_head].ctypes.data + position % size * width
        following = arena[table[min(block + 1, (end - 1) // size)], layer, 0, kv_head].ctypes.data
        for _ in range(min(end, (block + 1) * size) - position):
            a, b, c, d = zero(), zero(), zero(), zero()
            query = asked.ctypes.data
            for part in range(0, width, 64):
                by = load(key + part)
                a = multiply_add(by, load(query + part), a)
                b = multiply_add(by, load(query + width + part), b)
                c = multiply_add(by, load(query + 2 * width + part), c)
                d = multiply_add(by, load(query + 3 * width + part), d)
                prefetch(following + part)
            place = position - first
            scores[0, place], scores[1, place] = across(a), across(b)
            scores[2, place], scores[3, place] = across(c), across(d)
            key += width
            following += width
            position += 1


@njit(cache=True, fastmath=RELAXED)
def _softmax_few(scores, count, total):
    """Along each lane; the division is left for later (`total`)."""
    for lane in range(FEW):
        line = scores[lane]
        most = np.float32(-np.inf)
        for place in range(count):
            most = max(line[place], most)
        sum_ = np.float32(0)
        for place in range(count):
            line[place] = exponential(line[place] - most)
            sum_ += line[place]
        total[lane] = sum_


@njit(cache=True)
def _values(arena, layer, kv_head, table, first, count, weights, step, stride, found):
    """found [4, dim]: values weighed by four lanes; their weights are `stride` bytes apart, positions `step`."""
    size, dim = arena.shape[4], arena.shape[5]
    for part in range(0, dim, 32):
        a0, a1, b0, b1, c0, c1, d0, d1 = zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()
        weight = weights
        done = 0
        while done < count:
            place = (first + done) % size
            value = arena[table[(first + done) // size], layer, 1, kv_head].ctypes.data + (place * dim + part) * 4
            here = min(size - place, count - done)
            last = (first + count - 1) // size
            following = arena[table[min((first + done) // size + 1, last)], layer, 1, kv_head].ctypes.data + part * 4
            for _ in range(here):
                prefetch(following)
                prefetch(following + 64)
                following += dim * 4
                left = load(value)
                right = load(value + 64)
                by = broadcast(weight)
                a0, a1 = multiply_add(by, left, a0), multiply_add(by, right, a1)
                by = broadcast(weight + stride)
                b0, b1 = multiply_add(by, left, b0), multiply_add(by, right, b1)
                by = broadcast(weight + 2 * stride)
                c0, c1 = multiply_add(by, left, c0), multiply_add(by, right, c1)
                by = broadcast(weight + 3 * stride)
                d0, d1 = multiply_add(by, left, d0), multiply_add(by, right, d1)
                value += dim * 4
                weight += step
            done += here
        at = found.ctypes.data + part * 4
        store(at, a0)
        store(at + 64, a1)
        store(at + dim * 4, b0)
        store(at + dim * 4 + 64, b1)
        store(at + dim * 8, c0)
        store(at + dim * 8 + 64, c1)
        store(at + dim * 12, d0)
        store(at + dim * 12 + 64, d1)


@njit(cache=True, error_model="numpy")  # a sum of weights may be 0 or no number
def _tile(qkv, token, start, lane, lanes, shared, kv_head, table, window, arena, layer, out):
    """Lanes `lane … lane + lanes - 1` of one row and KV head."""
    dim = qkv.shape[2]
    oldest = start + lane // shared
    newest = start + (lane + lanes - 1) // shared
    first = max(0, oldest - window + 1) // 4 * 4 if window else 0
    count = newest + 1 - first
    asked = np.zeros((dim, LANES), np.float32)
    scores = np.empty(((count + 3) // 4 * 4, LANES), np.float32)
    begins, ends = np.zeros(LANES, np.int32), np.zeros(LANES, np.int32)
    best, total = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    found = np.empty((4, dim), np.float32)
    for i in range(lanes):
        ends[i] = start + (lane + i) // shared + 1 - first
        begins[i] = max(0, ends[i] - window) if window else 0
    _turned_queries(qkv, token, lane, lanes, shared, kv_head * shared, asked)
    _scores(arena, layer, kv_head, table, first, newest + 1, asked, scores)
    _softmax(scores, count, begins, ends, best, total)
    for four in range(0, lanes, 4):
        _values(arena, layer, kv_head, table, first, count, scores.ctypes.data + four * 4, 64, 4, found)
        for i in range(four, min(four + 4, lanes)):
            target = out[token + (lane + i) // shared, kv_head * shared + (lane + i) % shared]
            for d in range(dim):
                target[d] = found[i - four, d] / total[i]


@njit(cache=True, error_model="numpy")  # a sum of weights may be 0 or no number
def _decode(qkv, token, start, shared, kv_head, table, window, arena, layer, out):
    """A row of one token, whose heads are at most FEW."""
    dim = qkv.shape[2]
    first = max(0, start - window + 1) if window else 0
    count = start + 1 - first
    asked = np.zeros((FEW, dim), np.float32)
    scores = np.empty((FEW, count), np.float32)
    total, found = np.empty(FEW, np.float32), np.empty((FEW, dim), np.float32)
    scale = np.float32(1) / np.sqrt(np.float32(dim))
    for head in range(shared):
        for d in range(dim):
            asked[head, d] = qkv[token, kv_head * shared + head, d] * scale
    _scores_few(arena, layer, kv_head, table, first, start + 1, asked, scores)
    _softmax_few(scores, count, total)
    _values(arena, layer, kv_head, table, first, count, scores.ctypes.data, 4, count * 4, found)
    for head in range(shared):
        for d in range(dim):
            out[token, kv_head * shared + head, d] = found[head, d] / total[head]


@njit(cache=True, parallel=True)
def attention(qkv, work, tables, window, arena, layer, out):
    """All rows of a step.

    qkv float32 [tokens, heads + 2 · kv_heads, dim]; `work` int64 [tiles, 5] of (row, its first token, its start
    position, first lane, lanes); tables int64 [rows, blocks]; window 0 is none; arena float32 in KVLayout's shape;
    out float32 [tokens, heads, dim].
    """
    kv_heads = arena.shape[3]
    shared = out.shape[1] // kv_heads
    tasks = work.shape[0] * kv_heads
    half = (tasks + 1) // 2
    for turn in prange(tasks):
        # Later tiles of a prompt see more: two threads with a half each get every other one.
        task = turn * 2 if turn < half else (turn - half) * 2 + 1
        row, token, start, lane, lanes = work[task // kv_heads]
        if lane == 0 and lanes == shared and shared <= FEW:
            _decode(qkv, token, start, shared, task % kv_heads, tables[row], window, arena, layer, out)
        else:
            _tile(qkv, token, start, lane, lanes, shared, task % kv_heads, tables[row], window, arena, layer, out)
