"""Decode attention straight from a bfloat16 arena: one query per sequence, no gather. See README."""

import numpy as np
from numba import njit, prange

from legato_engine.kernels.scalar import exponential, widened


@njit(cache=True, fastmath=True)
def _scores(query, arena, layer, kv_head, table, first, end, scale, scores):  # type: ignore[no-untyped-def]
    """scores[heads, position - first] for the heads that share one KV head; returns nothing."""
    size = arena.shape[4]
    for position in range(first, end):
        key = arena[table[position // size], layer, 0, kv_head, position % size]
        for head in range(query.shape[0]):
            total = np.float32(0)
            asked = query[head]
            for i in range(asked.shape[0]):
                total += asked[i] * widened(key[i])
            scores[head, position - first] = total * scale


@njit(cache=True, fastmath=True)
def _weigh(scores, count):  # type: ignore[no-untyped-def]
    """Softmax without its division, in place; returns the sum to divide by."""
    best = scores[0]
    for i in range(count):
        best = max(best, scores[i])
    total = np.float32(0)
    for i in range(count):
        scores[i] = exponential(scores[i] - best)
        total += scores[i]
    return total


@njit(cache=True, fastmath=True)
def _values(scores, sums, arena, layer, kv_head, table, first, end, out):  # type: ignore[no-untyped-def]
    size = arena.shape[4]
    out[:] = np.float32(0)
    for position in range(first, end):
        value = arena[table[position // size], layer, 1, kv_head, position % size]
        for head in range(out.shape[0]):
            weight = scores[head, position - first] / sums[head]
            target = out[head]
            for i in range(target.shape[0]):
                target[i] += weight * widened(value[i])


@njit(cache=True, parallel=True, fastmath=True)
def decode_attention(qkv, rows, tables, ends, window, arena, layer, out):  # type: ignore[no-untyped-def]
    """For each of `rows` (int64, indexes into qkv and out), its query over the positions before `ends`.

    qkv float32 [tokens, heads + 2 · kv_heads, dim]; tables int64 [rows, blocks]; window 0 is none;
    out float32 [tokens, heads, dim].
    """
    kv_heads = arena.shape[3]
    shared = out.shape[1] // kv_heads
    scale = np.float32(1) / np.sqrt(np.float32(out.shape[2]))
    for task in prange(rows.shape[0] * kv_heads):
        row, kv_head = task // kv_heads, task % kv_heads
        end = ends[row]
        first = max(0, end - window) if window else 0
        query = qkv[rows[row], kv_head * shared : (kv_head + 1) * shared]
        found = out[rows[row], kv_head * shared : (kv_head + 1) * shared]
        scores = np.empty((shared, end - first), np.float32)
        sums = np.empty(shared, np.float32)
        _scores(query, arena, layer, kv_head, tables[row], first, end, scale, scores)
        for head in range(shared):
            sums[head] = _weigh(scores[head], end - first)
        _values(scores, sums, arena, layer, kv_head, tables[row], first, end, found)
