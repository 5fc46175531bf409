"""The rows of a batch as flat arrays: everything that a backend needs to know of a step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from legato_engine.layers.inputs import AdaptedTokens, Ints, StepInputs
from legato_engine.layers.low_rank import Adapter
from legato_engine.scheduler.batch import Row

if TYPE_CHECKING:
    import torch


def build(rows: Sequence[Row], block_size: int, drawn: "torch.Tensor | None" = None) -> StepInputs:
    """Row after row. A block table may be longer than its row needs: only blocks that hold something are taken. `drawn`
    are the tokens that rows may name, see `Row`."""
    tokens, counts, sampled = list[int](), list[int](), list[int]()
    for row in rows:
        tokens.extend(row.tokens)
        counts.append(len(row.tokens))
        if row.draws:
            sampled.append(len(tokens) - 1)
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    begins = np.array([row.start for row in rows], np.int64)
    lengths = begins + np.array(counts, np.int64)
    tables = np.empty((len(rows), -(-int(lengths.max()) // block_size)), np.int64)
    for table, row, held in zip(tables, rows, (-(-lengths // block_size)).tolist(), strict=True):
        table[:held] = row.blocks[:held]
        table[held:] = row.blocks[0]
    of = np.repeat(np.arange(len(rows)), counts)
    positions = np.arange(len(tokens)) - starts[of] + begins[of]
    return StepInputs(
        tokens=np.array(tokens, np.int64),
        positions=positions,
        slots=tables[of, positions // block_size] * block_size + positions % block_size,
        starts=starts,
        lengths=lengths,
        tables=tables,
        sampled=np.array(sampled, np.int64),
        adapted=_adapted(rows, starts),
        drawn=drawn,
    )


def _adapted(rows: Sequence[Row], starts: Ints) -> tuple[AdaptedTokens, ...]:
    """The tokens of rows with an adapter, together for each."""
    pieces: dict[int, tuple[Adapter[Any], list[Ints]]] = {}
    for index, row in enumerate(rows):
        if (adapter := row.adapter) is not None:
            assert isinstance(adapter, Adapter)
            _, tokens = pieces.setdefault(id(adapter), (adapter, []))
            tokens.append(np.arange(starts[index], starts[index + 1]))
    return tuple([AdaptedTokens(adapter, np.concatenate(tokens)) for adapter, tokens in pieces.values()])
