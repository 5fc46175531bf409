"""Logprobs of the likeliest tokens of a row, by the logits as they are given."""

import triton
import triton.language as tl

from legato_engine.kernels.gpu.sampling.numbers import LOWEST_KEY, key_of, value_of

_NO_TOKEN = tl.constexpr(2**31 - 1)


@triton.jit
def rank_parts(logits, stride, vocab, parts, rows, tops, keys, ids, MOST: tl.constexpr, TILE: tl.constexpr):
    """The `tops` likeliest tokens of each part, the likeliest first; of tokens that tie, the lowest id first."""
    draw, part = tl.program_id(0), tl.program_id(1)
    row, count = tl.load(rows + draw), tl.load(tops + draw)
    if row >= 0:
        id = part * TILE + tl.arange(0, TILE)
        values = tl.load(logits + row.to(tl.int64) * stride + id, mask=id < vocab, other=0.0).to(tl.float32)
        left = tl.where(id < vocab, key_of(values), LOWEST_KEY)
        place = (draw * parts + part) * MOST
        for rank in range(count):
            key, token = _first(left, id)
            tl.store(keys + place + rank, key)
            tl.store(ids + place + rank, token)
            left = tl.where(id == token, LOWEST_KEY, left)


@triton.jit
def rank_rows(
    parts, rows, tops, states, keys, ids, bases, top_ids, top_logprobs,
    MOST: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """The `tops` likeliest tokens of each draw. `bases`: the largest logit and the logarithm of the sum."""
    draw = tl.program_id(0)
    row, count = tl.load(rows + draw), tl.load(tops + draw)
    if (row >= 0) & (tl.load(states + draw) == 0):
        slot = tl.arange(0, SLOTS)
        there = (slot < parts * MOST) & (slot % MOST < count)
        id = tl.load(ids + draw * parts * MOST + slot, mask=there, other=_NO_TOKEN)
        left = tl.load(keys + draw * parts * MOST + slot, mask=there, other=LOWEST_KEY)
        most, log_sum = tl.load(bases + 2 * draw), tl.load(bases + 2 * draw + 1)
        for rank in range(count):
            key, token = _first(left, id)
            tl.store(top_ids + draw * MOST + rank, token)
            tl.store(top_logprobs + draw * MOST + rank, value_of(key) - most - log_sum)
            left = tl.where(id == token, LOWEST_KEY, left)


@triton.jit
def _first(keys, ids):
    key = tl.max(keys, 0)
    return key, tl.min(tl.where(keys == key, ids, _NO_TOKEN), 0)
