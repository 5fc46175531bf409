"""A batch as tensors: everything that layers need beside weights, worked out once per step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from legato_engine.kernels.attention.cpu import Group, group_rows
from legato_engine.kvcache.layout import KVLayout
from legato_engine.scheduler.batch import Row


@dataclass(frozen=True, slots=True)
class Paged:
    """Rows for kernels that read the arena themselves."""

    work: np.ndarray[Any, Any]  # int64 [tiles, 5]: row, its first token, its start, first lane, lanes
    tables: np.ndarray[Any, Any]  # int64 [rows, blocks], padded


@dataclass(frozen=True, slots=True)
class StepInputs:
    """All rows of a step, their tokens one after another ("flat")."""

    tokens: torch.Tensor  # int64 [tokens]
    positions: torch.Tensor  # int64 [tokens]
    blocks: torch.Tensor  # int64 [tokens]: where each token's KV goes
    places: torch.Tensor  # int64 [tokens]: and at which place of that block
    attended: tuple[Group, ...] | Paged  # what the attention of the model's kernels works on
    sampled: torch.Tensor  # int64: flat index of the last token of each row that samples


def build(
    rows: Sequence[Row],
    layout: KVLayout,
    shared: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
    paged: bool,
) -> StepInputs:
    """`shared` heads use one KV head; `window` is the model's sliding window; `paged` asks for work in the arena."""
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
        attended=paged_rows(rows, shared) if paged else group_rows(rows, size, shared, window, dtype, device),
        sampled=torch.tensor(sampled, dtype=torch.int64).to(device),
    )


def paged_rows(rows: Sequence[Row], shared: int) -> Paged:
    """Tiles of 16 lanes, a lane for each query and each of the heads that share a KV head."""
    work, flat = list[tuple[int, int, int, int, int]](), 0
    tables = np.zeros((len(rows), max(len(row.blocks) for row in rows)), np.int64)
    for index, row in enumerate(rows):
        tables[index, : len(row.blocks)] = row.blocks
        lanes = len(row.tokens) * shared
        work += [(index, flat, row.start, lane, min(16, lanes - lane)) for lane in range(0, lanes, 16)]
        flat += len(row.tokens)
    return Paged(np.array(work, np.int64), tables)
