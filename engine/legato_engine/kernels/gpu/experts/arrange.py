"""Sorts pairs of tokens and experts by expert into blocks in Triton, stably: equal choices give equal blocks.

Spans of neighbouring tokens are counted first. The tables of counts and blocks are small, so each program reads all
counts and adds them up itself, and no program waits for another.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

TOKENS = 16  # tokens of a tile; a step of one tile is sorted by the program that chooses its experts
MOST_SPANS = 64
FIELDS = 3
_FIELDS = tl.constexpr(FIELDS)
_BLOCKS = tl.constexpr(32)  # blocks whose experts a program looks up in one iteration


@dataclass(frozen=True, slots=True)
class PairBlocks:
    """The pairs of a step, sorted by expert, and blocks of up to `rows` neighbouring pairs of one expert.

    The pair of a token and its j-th expert is token · active + j."""

    pairs: torch.Tensor  # int32 [tokens · active]; undefined at the end, after the pairs of real tokens
    table: torch.Tensor  # int32 [blocks, FIELDS]: expert, first pair, pairs; unused blocks have 0 pairs
    counts: torch.Tensor  # int32 [MOST_SPANS, experts padded to a power of two]: scratch memory
    rows: int


def most_blocks(tokens: int, active: int, experts: int, rows: int) -> int:
    """The maximum number of blocks for the pairs of `tokens` tokens: each expert's last block may be partly full."""
    pairs, most = tokens * active, min(experts, tokens * active)
    if tokens <= rows:  # a token chooses an expert at most once, so each expert needs one block
        return most
    return min(pairs, (pairs + most * (rows - 1)) // rows)


@triton.jit
def _store_pairs(pairs, places, first, token, ACTIVE: tl.constexpr):
    """Stores the pairs of a tile of tokens, from index `first` [WIDTH] of each expert on. Returns the number of pairs
    by expert."""
    taken = (places >= 0).to(tl.int32)
    at = first[None, :] + tl.cumsum(taken, 0) - taken
    tl.store(pairs + at, token[:, None] * ACTIVE + places, mask=places >= 0)
    return tl.sum(taken, 0)


@triton.jit
def _store_blocks(blocks, totals, begin, end, TILE_M: tl.constexpr):
    """Stores the blocks from `begin` to `end`; totals [WIDTH] are the numbers of all pairs by expert."""
    expert = tl.arange(0, totals.shape[0])
    count = tl.cdiv(totals, TILE_M)
    last = tl.cumsum(count, 0)
    pair, first_block = tl.cumsum(totals, 0) - totals, last - count
    for first in tl.range(begin, end, _BLOCKS):
        block = first + tl.arange(0, _BLOCKS)
        block_of_expert = block[:, None] - first_block[None, :]
        mine = (block_of_expert >= 0) & (block[:, None] < last[None, :])
        rows = tl.sum(tl.where(mine, tl.minimum(totals[None, :] - block_of_expert * TILE_M, TILE_M), 0), 1)
        to, inside = blocks + block * _FIELDS, block < end
        tl.store(to, tl.sum(tl.where(mine, expert[None, :], 0), 1), mask=inside)
        tl.store(to + 1, tl.sum(tl.where(mine, pair[None, :] + block_of_expert * TILE_M, 0), 1), mask=inside)
        tl.store(to + 2, rows, mask=inside)


@triton.jit
def arrange_alone(pairs, blocks, places, totals, token, most_blocks, ACTIVE: tl.constexpr, TILE_M: tl.constexpr):
    """Sorts the pairs of a step of one tile. places [TOKENS, WIDTH] come from `route`; totals [WIDTH] count its pairs
    by expert."""
    _store_pairs(pairs, places, tl.cumsum(totals, 0) - totals, token, ACTIVE)
    _store_blocks(blocks, totals, 0, most_blocks, TILE_M)


@triton.jit(do_not_specialize=["rows", "spans", "tiles_of_span", "most_blocks", "blocks_of_span"])
def _arrange(
    numbers,  # [tokens, ACTIVE]
    starts,
    counts,  # [spans, WIDTH]
    pairs,  # [tokens · ACTIVE]
    blocks,  # [most_blocks, 3]
    rows,
    spans,
    tiles_of_span,
    most_blocks,
    blocks_of_span,
    ACTIVE: tl.constexpr,
    WIDTH: tl.constexpr,
    SPANS: tl.constexpr,
    TOKENS: tl.constexpr,
    TILE_M: tl.constexpr,
):
    span, expert = tl.arange(0, SPANS), tl.arange(0, WIDTH)
    mine = tl.program_id(0)
    present = tl.load(starts + rows)
    at = counts + span[:, None] * WIDTH + expert[None, :]
    counted = tl.load(at, mask=(span < spans)[:, None], other=0)
    totals = tl.sum(counted, 0)
    first = tl.cumsum(totals, 0) - totals + tl.sum(tl.where((span < mine)[:, None], counted, 0), 0)
    for tile in tl.range(0, tiles_of_span):
        token = (mine * tiles_of_span + tile) * TOKENS + tl.arange(0, TOKENS)
        places = tl.full([TOKENS, WIDTH], -1, tl.int32)
        for slot in tl.static_range(ACTIVE):
            number = tl.load(numbers + token * ACTIVE + slot, mask=token < present, other=-1)
            places = tl.where(expert[None, :] == number[:, None], slot, places)
        first += _store_pairs(pairs, places, first, token, ACTIVE)
    begin = mine * blocks_of_span
    _store_blocks(blocks, totals, begin, tl.minimum(begin + blocks_of_span, most_blocks), TILE_M)


def arrange(
    numbers: torch.Tensor, starts: torch.Tensor, rows: int, blocks: PairBlocks, experts: int, spans: int, tiles: int
) -> None:
    """Sorts the pairs of all tokens before `starts[rows]`, whose experts are `numbers` [tokens, active].

    `blocks.counts` has the counts of `spans` spans, each of which has `tiles` tiles of tokens."""
    most = len(blocks.table)
    _arrange[(spans,)](
        numbers, starts, blocks.counts, blocks.pairs, blocks.table, rows, spans, tiles, most,
        triton.cdiv(most, spans), ACTIVE=numbers.shape[1], WIDTH=triton.next_power_of_2(experts), SPANS=MOST_SPANS,
        TOKENS=TOKENS, TILE_M=blocks.rows, num_warps=8,
    )  # fmt: skip
