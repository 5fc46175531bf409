"""Attention over the paged arena in torch: one gather and one batched attention for all rows of a group."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from legato_engine.kernels.torch.float8 import KVScales


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of similar shape, padded to the longest.

    `take` [rows, queries] are tokens of the step (padding repeats a row's last one), `blocks` [rows, blocks] their
    block tables, `at` [rows, queries] their positions, counted from the first of these. `beyond` are the (rows,
    positions) that may hold other rows' values: no mask removes a NaN. `given` are the indexes of the real ones among
    padded queries, and `put` their tokens of the step. `piece` queries of each row are attended at a time; `mask` is
    the mask of all queries if they are one piece, otherwise each piece makes its own.
    """

    take: torch.Tensor
    at: torch.Tensor
    blocks: torch.Tensor
    window: int | None
    piece: int
    mask: torch.Tensor | None
    beyond: tuple[torch.Tensor, torch.Tensor]
    given: torch.Tensor
    put: torch.Tensor


def attention(
    queries: torch.Tensor, layer: torch.Tensor, groups: Sequence[Group], scales: KVScales | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Queries [tokens, heads, dim]; layer [blocks, 2, kv_heads, block_size, dim], with `scales` if it holds e4m3;
    `sinks` [heads] are scores that only the sum of weights includes. Result as queries."""
    out = torch.empty_like(queries)
    for group in groups:
        out[group.put] = _attend(queries, layer, group, scales, sinks)[group.given]
    return out


def causal_mask(at: torch.Tensor, positions: int, window: int | None, shared: int, dtype: torch.dtype) -> torch.Tensor:
    """The summand for scores of queries `at` [rows, queries]: [rows, 1, shared · queries, positions]."""
    position, at = torch.arange(positions, device=at.device), at[:, :, None]
    seen = position <= at
    if window is not None:
        seen &= position > at - window
    mask = torch.zeros(seen.shape, dtype=dtype, device=at.device).masked_fill_(~seen, float("-inf"))
    return mask.repeat(1, shared, 1)[:, None]


def _with_sinks(mask: torch.Tensor, sinks: torch.Tensor, queries: int) -> torch.Tensor:
    """Appends a position whose score is the sink of each lane's head: [rows, kv_heads, lanes, positions + 1]."""
    lanes = sinks.to(mask.dtype).view(-1, mask.shape[2] // queries, 1).repeat(1, 1, queries).flatten(1)
    rows, kv_heads = mask.shape[0], len(lanes)
    columns = lanes[None, :, :, None].expand(rows, -1, -1, 1)
    return torch.cat((mask.expand(rows, kv_heads, -1, -1), columns), 3)


def _attend(
    queries: torch.Tensor, layer: torch.Tensor, group: Group, scales: KVScales | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    _, heads, dim = queries.shape
    kv_heads = layer.shape[2]
    shared = heads // kv_heads
    rows, count = group.take.shape
    asked = queries[group.take].view(rows, count, kv_heads, shared, dim).permute(0, 2, 3, 1, 4)
    held = (
        layer.index_select(0, group.blocks.flatten())
        .view(rows, -1, *layer.shape[1:])
        .permute(2, 0, 3, 1, 4, 5)
        .reshape(2, rows, kv_heads, -1, dim)
    )
    if scales is not None:
        held = held.to(queries.dtype) * torch.stack(scales).to(queries.dtype)[:, None, :, None, None]
    row, place = group.beyond
    held[:, row, :, place] = 0
    if sinks is not None:  # a position whose key and value are 0
        held = torch.nn.functional.pad(held, (0, 0, 0, 1))
    results = torch.empty_like(asked)
    for first in range(0, count, group.piece):
        part = slice(first, first + group.piece)
        mask = group.mask
        if mask is None:
            positions = group.blocks.shape[1] * layer.shape[3]
            mask = causal_mask(group.at[:, part], positions, group.window, shared, queries.dtype)
        given = asked[:, :, :, part]
        if sinks is not None:
            mask = _with_sinks(mask, sinks, given.shape[3])
        result = torch.nn.functional.scaled_dot_product_attention(
            given.reshape(rows, kv_heads, -1, dim), held[0], held[1], attn_mask=mask
        )
        results[:, :, :, part] = result.view(given.shape)
    return results.permute(0, 3, 1, 2, 4).reshape(-1, heads, dim)
