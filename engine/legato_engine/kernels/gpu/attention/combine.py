"""Joins the parts of rows whose KV was split: each has its own largest score, sum of weights and weighted values."""

import triton
import triton.language as tl

from legato_engine.kernels.gpu.attention.plan import FIELDS
from legato_engine.kernels.gpu.attention.sinks import with_sinks

LANES = tl.constexpr(4)  # of a program
_LEAST = tl.constexpr(-1e30)


@triton.jit
def combine_parts(
    out,  # [tokens, heads, DIM]
    partials,  # [slots, kv_heads, TILE_M, PADDED]
    stats,  # [slots, kv_heads, 2, TILE_M]
    sinks,  # [heads], or None
    count,
    joins,  # [.., FIELDS]: start, queries, first lane, first slot, slots
    out_token_stride,
    out_head_stride,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    TILE_M: tl.constexpr,
    PARTS: tl.constexpr,  # read at a time
):
    """Program (h, l, j): KV head h, the l-th lanes of a tile of lanes, entry j. Programs beyond the count return
    immediately."""
    kv_head, within, join = tl.program_id(0), tl.program_id(1) * LANES, tl.program_id(2)
    entry = joins + join * FIELDS
    start, tokens, first_lane = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    first_slot, slots = tl.load(entry + 3), tl.load(entry + 4)
    if join >= tl.load(count):
        return
    if first_lane + within >= tokens * GROUP:
        return

    within = within + tl.arange(0, LANES)
    lane = first_lane + within
    used = lane < tokens * GROUP
    dim = tl.arange(0, PADDED)
    largest = tl.full([LANES], _LEAST, tl.float32)
    total = tl.zeros([LANES], tl.float32)
    sums = tl.zeros([LANES, PADDED], tl.float32)
    for begin in range(0, slots, PARTS):
        part = begin + tl.arange(0, PARTS)
        known = (part < slots)[:, None] & used[None, :]
        at = (first_slot + part).to(tl.int64) * tl.num_programs(0) + kv_head
        stat = stats + at[:, None] * 2 * TILE_M + within[None, :]
        scores = tl.load(stat, mask=known, other=_LEAST)
        weights = tl.load(stat + TILE_M, mask=known, other=0.0)
        values = tl.load(
            partials + at[:, None, None] * TILE_M * PADDED + within[None, :, None] * PADDED + dim[None, None, :],
            mask=known[:, :, None] & (dim < DIM)[None, None, :], other=0.0,
        )  # fmt: skip
        larger = tl.maximum(largest, tl.max(scores, 0))
        shrink = tl.math.exp2(largest - larger)
        grown = tl.math.exp2(scores - larger[None, :])
        total = total * shrink + tl.sum(weights * grown, 0)
        sums = sums * shrink[:, None] + tl.sum(values * grown[:, :, None], 0)
        largest = larger

    token, head = (start + lane // GROUP).to(tl.int64), kv_head * GROUP + lane % GROUP
    total = with_sinks(total, largest, sinks, head, used)
    target = out + (token * out_token_stride + head * out_head_stride)[:, None] + dim[None, :]
    tl.store(target, (sums / total[:, None]).to(out.dtype.element_ty), mask=used[:, None] & (dim < DIM)[None, :])
