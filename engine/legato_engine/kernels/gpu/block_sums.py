"""Sums of KV blocks in Triton. The maths is in `reference/block_sums.md`."""

import torch
import triton
import triton.language as tl

from legato_engine.kernels.gpu.configurations import Configuration


@triton.jit
def _sum_blocks(
    words,  # [num_blocks, width]
    ids,  # [count]
    weights,  # [width]
    parts,  # [count, tiles]
    width,
    TILE: tl.constexpr,
):
    entry, tile = tl.program_id(0), tl.program_id(1)
    column = tile * TILE + tl.arange(0, TILE)
    inside = column < width
    block = tl.load(ids + entry).to(tl.int64)
    word = tl.load(words + block * width + column, mask=inside, other=0)
    weight = tl.load(weights + column, mask=inside, other=0)
    tl.store(parts + entry * tl.num_programs(1) + tile, tl.sum(word * weight))


def sum_blocks(words: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, config: Configuration) -> torch.Tensor:
    """words int64 [num_blocks, n], ids int32 [count], weights int64 [n] → int64 [count, tiles], whose rows add up to
    the sums modulo 2^64. All contiguous; an id may come twice. `ids` may not be empty.

    Tile: TILE, the words of a block that a program sums up.
    """
    width = words.shape[1]
    tiles = triton.cdiv(width, config.tiles["TILE"])
    parts = torch.empty(len(ids), tiles, dtype=torch.int64, device=words.device)
    _sum_blocks[(len(ids), tiles)](words, ids, weights, parts, width, **config.options)
    return parts
