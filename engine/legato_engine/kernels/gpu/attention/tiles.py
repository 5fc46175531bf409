"""Attention of a tile of lanes to the tiles of KV in the work list: online softmax over paged blocks.

A lane is a query token and one of the heads that share a KV head. Method: FlashAttention-2 (Dao, 2023), with the heads
of a KV head packed as in FlashAttention-3, and split along KV as in FlashDecoding.
"""

import triton
import triton.language as tl

from legato_engine.kernels.gpu.attention.plan import FIELDS
from legato_engine.kernels.gpu.attention.sinks import with_sinks
from legato_engine.kernels.gpu.float8 import decoded

_LEAST = tl.constexpr(-1e30)  # before a lane has seen any score; finite, so that no two infinities are subtracted


@triton.jit
def _block_ids(table, first, length, BLOCK: tl.constexpr, TILE_N: tl.constexpr):
    """Blocks of the tile from position `first` on: one id if the tile lies within a block, otherwise one for each
    position."""
    if TILE_N <= BLOCK:
        ids = tl.load(table + first // BLOCK, mask=first < length, other=0)
    else:
        position = first + tl.arange(0, TILE_N)
        ids = tl.load(table + position // BLOCK, mask=position < length, other=0)
    return ids


@triton.jit
def _load(pointers, seen, dim, DIM: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr):
    """A tile of keys or values; 0 where the memory may hold anything: beyond the row, or before every window."""
    inner = (dim < DIM)[None, :]
    if MASKED:
        tile = tl.load(pointers, mask=seen[:, None] & inner, other=0.0)
    elif DIM < PADDED:
        tile = tl.load(pointers, mask=inner, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def _tiles(
    softmax,  # largest score [TILE_M], sum of weights [TILE_M], weighted values [TILE_M, PADDED]
    q,  # [TILE_M, PADDED]
    begin,
    end,
    kv,
    limits,
    scale,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Adds the tiles `begin … end - 1` to `softmax`. For `kv` and `limits` see `attend_items`."""
    largest, total, sums = softmax
    keys, to_values, table, block_stride, place_stride = kv
    low, length, position, window = limits
    place = tl.arange(0, TILE_N)
    dim = tl.arange(0, PADDED)
    inside = place % BLOCK if TILE_N > BLOCK else place
    # Ids of the next tile are carried: loaded and used in one iteration, they would halve the tiles in flight.
    ids = _block_ids(table, begin * TILE_N, length, BLOCK, TILE_N)
    for tile in tl.range(begin, end):
        first = tile * TILE_N
        kv_position = first + place
        seen = kv_position < length
        if window is not None:
            seen = seen & (kv_position >= low)
        within = inside if TILE_N > BLOCK else inside + first % BLOCK
        rows = ids.to(tl.int64) * block_stride + within * place_stride
        pointers = keys + rows[:, None] + dim[None, :]
        k = decoded(_load(pointers, seen, dim, DIM, PADDED, MASKED), q.dtype)
        v = decoded(_load(pointers + to_values, seen, dim, DIM, PADDED, MASKED), q.dtype)
        ids = _block_ids(table, first + TILE_N, length, BLOCK, TILE_N)

        scores = tl.dot(q, tl.trans(k))
        if MASKED:
            allowed = kv_position[None, :] <= position[:, None]
            if window is not None:
                allowed = allowed & (kv_position[None, :] > position[:, None] - window)
            scores = tl.where(allowed, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1) * scale)
        weights = tl.math.exp2(scores * scale - larger[:, None])  # one fused instruction a score, before its power
        shrink = tl.math.exp2(largest - larger)
        total = total * shrink + tl.sum(weights, 1)
        sums = tl.dot(weights.to(v.dtype), v, sums * shrink[:, None])
        largest = larger
    return largest, total, sums


@triton.jit
def _item(items, item):
    """The fields of an item: row, first lane, tiles, slot, start, tokens, length."""
    at = items + item * FIELDS
    row, first_lane = tl.load(at), tl.load(at + 1)
    begin, end, slot = tl.load(at + 2), tl.load(at + 3), tl.load(at + 4)
    return row, first_lane, begin, end, slot, tl.load(at + 5), tl.load(at + 6), tl.load(at + 7)


@triton.jit
def _range(first_lane, tokens, length, window, GROUP: tl.constexpr, TILE_M: tl.constexpr):
    """The first position that a lane may see, and the lowest and highest position of the lanes."""
    lowest = length - tokens + first_lane // GROUP
    highest = tl.minimum(length - tokens + (first_lane + TILE_M - 1) // GROUP, length - 1)
    low = 0
    if window is not None:
        low = lowest - window + 1
    return low, lowest, highest


@triton.jit
def _all_tiles(
    q, begin, end, kv, limits, lowest, highest, scale, DIM: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, FULL_TILES: tl.constexpr,
):  # fmt: skip
    """First the tiles that a window cuts, then the tiles that all lanes see, then those that the causal mask cuts."""
    window = limits[3]
    largest = tl.full([TILE_M], _LEAST, tl.float32)
    softmax = largest, tl.zeros([TILE_M], tl.float32), tl.zeros([TILE_M, PADDED], tl.float32)
    if FULL_TILES:
        full = begin
        if window is not None:
            full = tl.maximum(begin, tl.cdiv(tl.maximum(highest - window + 1, 0), TILE_N))
            softmax = _tiles(softmax, q, begin, full, kv, limits, scale, DIM, PADDED, BLOCK, TILE_N, True)
        masked = tl.maximum(full, (lowest + 1) // TILE_N)
        softmax = _tiles(softmax, q, full, masked, kv, limits, scale, DIM, PADDED, BLOCK, TILE_N, False)
        begin = masked
    return _tiles(softmax, q, begin, end, kv, limits, scale, DIM, PADDED, BLOCK, TILE_N, True)


@triton.jit
def _store_part(partials, stats, part, largest, total, sums, real, TILE_M: tl.constexpr, PADDED: tl.constexpr):
    within, dim = tl.arange(0, TILE_M), tl.arange(0, PADDED)
    tl.store(partials + part * TILE_M * PADDED + within[:, None] * PADDED + dim[None, :], sums, mask=real)
    tl.store(stats + part * 2 * TILE_M + within, largest)
    tl.store(stats + part * 2 * TILE_M + TILE_M + within, total)


@triton.jit
def attend_items(
    queries,  # [tokens, heads, DIM]
    layer,  # [blocks, 2, kv_heads, BLOCK, DIM]
    kv_scales,  # [2, kv_heads] for e4m3, or None
    sinks,  # [heads], or None
    tables,  # [rows, ..]
    out,  # [tokens, heads, DIM]
    partials,  # [slots, kv_heads, TILE_M, PADDED]
    stats,  # [slots, kv_heads, 2, TILE_M]: largest score, sum of weights
    count,
    items,  # [.., FIELDS]
    window,
    scale,  # log2(e) / sqrt(DIM)
    token_stride,
    head_stride,
    block_stride,
    to_values,
    kv_stride,
    place_stride,
    table_stride,
    out_token_stride,
    out_head_stride,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    FULL_TILES: tl.constexpr,  # tiles that all lanes see are taken without masks; no item is a part
):
    """Program (h, i): KV head h, item i. Programs beyond the count return immediately."""
    kv_head, item = tl.program_id(0), tl.program_id(1)
    row, first_lane, begin, end, slot, start, tokens, length = _item(items, item)
    if item >= tl.load(count):
        return
    lane, dim = first_lane + tl.arange(0, TILE_M), tl.arange(0, PADDED)
    token, head = lane // GROUP, kv_head * GROUP + lane % GROUP
    real = (lane < tokens * GROUP)[:, None] & (dim < DIM)[None, :]
    at = (start + token).to(tl.int64)
    q = tl.load(queries + (at * token_stride + head * head_stride)[:, None] + dim[None, :], mask=real, other=0.0)
    low, lowest, highest = _range(first_lane, tokens, length, window, GROUP, TILE_M)
    if kv_scales is not None:
        scale *= tl.load(kv_scales + kv_head)
    # Keys of the KV head, the distance of values from them, the row's blocks, and strides of blocks and positions.
    keys, table = layer + kv_head.to(tl.int64) * kv_stride, tables + row.to(tl.int64) * table_stride
    kv = keys, to_values, table, block_stride, place_stride
    # The first position that a lane may see, the number of positions, and the position of each lane.
    limits = low, length, length - tokens + token, window
    largest, total, sums = _all_tiles(
        q, begin, end, kv, limits, lowest, highest, scale, DIM, PADDED, BLOCK, TILE_M, TILE_N, FULL_TILES
    )
    if kv_scales is not None:
        sums *= tl.load(kv_scales + tl.num_programs(0) + kv_head)
    if slot < 0:
        total = with_sinks(total, largest, sinks, head, lane < tokens * GROUP)  # of parts, when they are joined
        target = out + (at * out_token_stride + head * out_head_stride)[:, None] + dim[None, :]
        tl.store(target, (sums / total[:, None]).to(out.dtype.element_ty), mask=real)
    else:
        part = slot.to(tl.int64) * tl.num_programs(0) + kv_head
        _store_part(partials, stats, part, largest, total, sums, real, TILE_M, PADDED)
