"""A batch as tensors: everything that layers need beside weights, worked out once per step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from legato_engine.kernels.attention.cpu import Group, group_rows
from legato_engine.kvcache.layout import KVLayout
from legato_engine.scheduler.batch import Row


@dataclass(frozen=True, slots=True)
class StepInputs:
    """All rows of a step, their tokens one after another ("flat")."""

    tokens: torch.Tensor  # int64 [tokens]
    positions: torch.Tensor  # int64 [tokens]
    blocks: torch.Tensor  # int64 [tokens]: where each token's KV goes
    places: torch.Tensor  # int64 [tokens]: and at which place of that block
    groups: tuple[Group, ...]
    sampled: torch.Tensor  # int64: flat index of the last token of each row that samples


def build(
    rows: Sequence[Row], layout: KVLayout, shared: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> StepInputs:
    """`shared` heads use one KV head; `window` is the model's sliding window."""
    size = layout.block_size
    tokens, positions, blocks, sampled = list[int](), list[int](), list[int](), list[int]()
    for row in rows:
        end = row.start + len(row.tokens)
        tokens.extend(row.tokens)
        positions.extend(range(row.start, end))
        blocks.extend(row.blocks[position // size] for position in range(row.start, end))
        if row.draws:
            sampled.append(len(tokens) - 1)
    at = torch.tensor(positions)
    return StepInputs(
        tokens=torch.tensor(tokens).to(device),
        positions=at.to(device),
        blocks=torch.tensor(blocks).to(device),
        places=(at % size).to(device),
        groups=group_rows(rows, size, shared, window, dtype, device),
        sampled=torch.tensor(sampled, dtype=torch.int64).to(device),
    )
