"""Attention over the paged arena by torch: one gather and one batched attention for all rows of a group."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from legato_engine.scheduler.batch import Row


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of similar shape, padded to the longest: worked out once per step, used by every layer.

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


def group_rows(
    rows: Sequence[Row],
    block_size: int,
    shared: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Group, ...]:
    """The rows of a step as groups: queries and context of a group's rows differ by less than twice."""
    alike: dict[tuple[int, int], list[tuple[int, Row]]] = defaultdict(list)
    token = 0
    for row in rows:
        blocks = -(-(row.start + len(row.tokens)) // block_size)
        alike[(len(row.tokens).bit_length(), blocks.bit_length())].append((token, row))
        token += len(row.tokens)
    return tuple(_group(members, block_size, shared, window, dtype, device) for members in alike.values())


def _group(
    members: list[tuple[int, Row]],
    block_size: int,
    shared: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Group:
    first = torch.tensor([token for token, _ in members])
    count = torch.tensor([len(row.tokens) for _, row in members])
    start = torch.tensor([row.start for _, row in members])
    widths = [-(-(row.start + len(row.tokens)) // block_size) for _, row in members]
    tables = [
        [*row.blocks[:width], *[row.blocks[0]] * (max(widths) - width)]
        for (_, row), width in zip(members, widths, strict=True)
    ]
    query = torch.arange(int(count.max()))
    inside = torch.minimum(query, count[:, None] - 1)
    take = first[:, None] + inside
    at = (start[:, None] + inside)[:, :, None]
    position = torch.arange(max(widths) * block_size)
    seen = position <= at
    if window is not None:
        seen &= position > at - window
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf"))
    end = (start + count)[:, None]
    beyond = (position >= end) & ((position < end + block_size) | (end < block_size))  # else it is a row's first block
    rows, places = beyond.nonzero(as_tuple=True)
    given = (query < count[:, None]).flatten().nonzero().squeeze(1)
    return Group(
        take=take.to(device),
        blocks=torch.tensor(tables).to(device),
        mask=mask.repeat(1, shared, 1)[:, None].to(device),
        beyond=(rows.to(device), places.to(device)),
        given=given.to(device),
        put=take.flatten()[given].to(device),
    )


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
