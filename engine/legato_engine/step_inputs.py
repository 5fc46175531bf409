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
class Single:
    """Rows of one token, for kernels that read the arena themselves."""

    rows: np.ndarray[Any, Any]  # int64: their flat indexes
    tables: np.ndarray[Any, Any]  # int64 [rows, blocks], padded
    ends: np.ndarray[Any, Any]  # int64: positions they see


@dataclass(frozen=True, slots=True)
class StepInputs:
    """All rows of a step, their tokens one after another ("flat")."""

    tokens: torch.Tensor  # int64 [tokens]
    positions: torch.Tensor  # int64 [tokens]
    blocks: torch.Tensor  # int64 [tokens]: where each token's KV goes
    places: torch.Tensor  # int64 [tokens]: and at which place of that block
    groups: tuple[Group, ...]  # of all rows, or of those that are not in `single`
    single: Single
    sampled: torch.Tensor  # int64: flat index of the last token of each row that samples


def build(
    rows: Sequence[Row],
    layout: KVLayout,
    shared: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
    apart: bool,
) -> StepInputs:
    """`shared` heads use one KV head; `window` is the model's sliding window; `apart` puts decoding rows in `single`."""
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
        groups=group_rows(rows, size, shared, window, dtype, device, 2 if apart else 1),
        single=_single(rows if apart else (), size),
        sampled=torch.tensor(sampled, dtype=torch.int64).to(device),
    )


def _single(rows: Sequence[Row], block_size: int) -> Single:
    found, flat = list[tuple[int, Row]](), 0
    for row in rows:
        if len(row.tokens) == 1:
            found.append((flat, row))
        flat += len(row.tokens)
    widest = max((row.start // block_size + 1 for _, row in found), default=0)
    tables = np.zeros((len(found), widest), np.int64)
    for table, (_, row) in zip(tables, found, strict=True):
        used = row.start // block_size + 1
        table[:used] = row.blocks[:used]
    ends = np.array([row.start + 1 for _, row in found], np.int64)
    return Single(np.array([flat for flat, _ in found], np.int64), tables, ends)
