"""The rows of a batch as flat arrays, which are a backend's only input."""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from legato_engine.kvcache.window_table import WindowTable
from legato_engine.layers.inputs import AdaptedTokens, Ints, StepInputs, WindowInputs
from legato_engine.layers.low_rank import LowRankAdapter
from legato_engine.scheduler.batch import Row

if TYPE_CHECKING:
    import torch


def build(rows: Sequence[Row], block_size: int, drawn: "torch.Tensor | None" = None) -> StepInputs:
    """Flattens rows in their order. Blocks of a row beyond its last token are left out. `drawn` are the tokens that
    rows may refer to, see `Row`. All rows have a table for each group of layers."""
    tokens = list(chain.from_iterable([row.tokens for row in rows]))
    counts = [len(row.tokens) for row in rows]
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    begins = np.array([row.start for row in rows], np.int64)
    lengths = begins + np.array(counts, np.int64)
    used = -(-lengths // block_size)
    tables = _tables(rows, used)
    token_rows = np.repeat(np.arange(len(rows)), counts)
    positions = np.arange(len(tokens)) - starts[token_rows] + begins[token_rows]
    of_windows = [_window_tables(each, used) for each in zip(*[row.windows for row in rows], strict=True)]
    places = token_rows, positions // block_size, positions % block_size
    return StepInputs(
        tokens=np.array(tokens, np.int64),
        positions=positions,
        slots=_slots(tables, places, block_size),
        starts=starts,
        lengths=lengths,
        tables=tables,
        sampled=_sampled(rows, starts),
        adapted=_adapted(rows, starts),
        drawn=drawn,
        windows=tuple([WindowInputs(_slots(each, places, block_size), each) for each in of_windows]),
    )


def _sampled(rows: Sequence[Row], starts: Ints) -> Ints:
    """The tokens of the step after which others are sampled."""
    drawing = np.fromiter([len(row.draws) > 0 for row in rows], np.bool_, len(rows))
    last: Ints = starts[1:][drawing] - 1
    drafts = np.array([row.drafts for row in rows if row.draws], np.int64)
    if not drafts.any():
        return last
    return np.concatenate([np.arange(end - count, end + 1) for end, count in zip(last, drafts, strict=True)])


def _tables(rows: Sequence[Row], used: Ints) -> Ints:
    """The first group's tables, [rows, blocks], of rows that use this many blocks each."""
    pairs = zip([row.blocks for row in rows], used.tolist(), strict=True)
    blocks = chain.from_iterable([each if len(each) == count else each[:count] for each, count in pairs])
    flat = np.fromiter(blocks, np.int64, int(used.sum()))  # in one go: an array for each row takes as long as a step
    tables: Ints = np.repeat(flat[np.cumsum(used) - used], int(used.max())).reshape(len(rows), -1)
    tables[np.arange(tables.shape[1]) < used[:, None]] = flat
    return tables


def _slots(tables: Ints, places: tuple[Ints, Ints, Ints], block_size: int) -> Ints:
    rows, blocks, within = places
    slots: Ints = tables[rows, blocks] * block_size + within
    return slots


def _window_tables(windows: Sequence[WindowTable], used: Ints) -> Ints:
    """The tables of rows that use this many blocks each, in a group with a window."""
    tables = np.empty((len(windows), int(used.max())), np.int64)
    for table, window, end in zip(tables, windows, used.tolist(), strict=True):
        table[: window.first] = table[end:] = window.blocks[0]
        table[window.first : end] = window.blocks[: end - window.first]
    return tables


def _adapted(rows: Sequence[Row], starts: Ints) -> tuple[AdaptedTokens, ...]:
    """The tokens of rows with an adapter, grouped by adapter."""
    pieces: dict[int, tuple[LowRankAdapter, list[Ints]]] = {}
    for index, row in enumerate(rows):
        if (adapter := row.adapter) is not None:
            assert isinstance(adapter, LowRankAdapter)
            _, tokens = pieces.setdefault(id(adapter), (adapter, []))
            tokens.append(np.arange(starts[index], starts[index + 1]))
    return tuple([AdaptedTokens(adapter, np.concatenate(tokens)) for adapter, tokens in pieces.values()])
