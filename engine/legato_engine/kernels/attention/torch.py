"""Attention over the paged arena by torch: one gather and one batched attention for all rows of a group."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of similar shape, padded to the longest.

    `take` [rows, queries] are tokens of the step (padding repeats a row's last one), `blocks` [rows, blocks] their
    block tables, `mask` [rows, 1, shared · queries, positions] is added to scores. `beyond` are the
    (rows, positions) that may hold what is not theirs: if others left there what is no number, no mask makes it one.
    `given` and `put` say which of the padded queries are real and which tokens of the step they are.
    """

    take: torch.Tensor
    blocks: torch.Tensor
    mask: torch.Tensor
    beyond: tuple[torch.Tensor, torch.Tensor]
    given: torch.Tensor
    put: torch.Tensor


def attention(queries: torch.Tensor, layer: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
    """Queries [tokens, heads, dim]; layer [blocks, 2, kv_heads, block_size, dim]. Result as queries."""
    out = torch.empty_like(queries)
    for group in groups:
        out[group.put] = _attend(queries, layer, group)[group.given]
    return out


def _attend(queries: torch.Tensor, layer: torch.Tensor, group: Group) -> torch.Tensor:
    _, heads, dim = queries.shape
    kv_heads = layer.shape[2]
    rows, count = group.take.shape
    asked = queries[group.take].view(rows, count, kv_heads, heads // kv_heads, dim).permute(0, 2, 3, 1, 4)
    held = (
        layer.index_select(0, group.blocks.flatten())
        .view(rows, -1, *layer.shape[1:])
        .permute(2, 0, 3, 1, 4, 5)
        .reshape(2, rows, kv_heads, -1, dim)
    )
    row, place = group.beyond
    held[:, row, :, place] = 0
    found = torch.nn.functional.scaled_dot_product_attention(
        asked.reshape(rows, kv_heads, -1, dim), held[0], held[1], attn_mask=group.mask
    )
    return found.view(rows, kv_heads, heads // kv_heads, count, dim).permute(0, 3, 1, 2, 4).reshape(-1, heads, dim)
