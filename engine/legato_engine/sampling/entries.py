"""Adjustments of logits as a table of entries for a device, one for each adjusted token of a draw.

The meaning is the same as in `adjust`. For each entry, the device reads a logit, adds, divides or multiplies, subtracts
and clamps.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from legato_engine.kernels.gpu.sampling.sample import FORBIDDEN, SEEN
from legato_engine.sampling.adjust import Ids, adjusts, forbidden, penalized, penalties
from legato_engine.scheduler.batch import Draw


class Entries(NamedTuple):
    """`table` is the input of `kernels.gpu.sampling.sample.change`; `changes` numbers draws with entries, else -1."""

    table: npt.NDArray[np.int32]
    changes: list[int]


def collect(draws: Sequence[Draw], vocab: int) -> Entries:
    """Collects the entries of all draws. With `allowed_token_ids`, only tokens with an entry may be sampled."""
    changing = [index for index, draw in enumerate(draws) if adjusts(draw)]
    changes = [-1] * len(draws)
    for line, index in enumerate(changing):
        changes[index] = line
    tables = [_table(index, draws[index], vocab) for index in changing]
    return Entries(np.concatenate(tables, axis=1) if tables else np.empty((5, 0), np.int32), changes)


def _table(index: int, draw: Draw, vocab: int) -> npt.NDArray[np.int32]:
    params, masked = draw.params, set(forbidden(draw))
    others = _within(params.allowed_token_ids or (*params.logit_bias, *masked), vocab)
    table = _including(_penalized(index, draw), index, others)
    biases = np.array(list(params.logit_bias.values()), np.float32)
    _put(table[2].view(np.float32), table[1], _ids(params.logit_bias), biases)
    _put(table[4], table[1], _ids(masked), np.full(len(masked), FORBIDDEN))
    return table[:, np.searchsorted(table[1], others)] if params.allowed_token_ids else table


def _ids(tokens: Iterable[int]) -> Ids:
    return np.fromiter(tokens, np.int64)


def _within(tokens: Iterable[int], vocab: int) -> Ids:
    """The distinct tokens within the vocabulary, ascending."""
    return _ids(sorted({token for token in tokens if 0 <= token < vocab}))


def _penalized(index: int, draw: Draw) -> npt.NDArray[np.int32]:
    """The table of penalties only, in the order of tokens."""
    if not penalized(draw):
        return np.empty((5, 0), np.int32)
    tokens, drops = penalties(draw)
    table = np.zeros((5, len(tokens)), np.int32)
    table[0], table[1], table[3] = index, tokens, drops.view(np.int32)
    table[4] = SEEN if draw.params.repetition_penalty != 1 else 0
    return table


def _including(table: npt.NDArray[np.int32], index: int, tokens: Ids) -> npt.NDArray[np.int32]:
    """The table with entries for `tokens` (ascending) added; they are few, so they are inserted without a sort."""
    places = np.searchsorted(table[1], tokens)
    lacking = np.append(table[1], -1)[places] != tokens
    added = np.zeros((5, np.count_nonzero(lacking)), np.int32)
    added[0], added[1] = index, tokens[lacking]
    return np.insert(table, places[lacking], added, axis=1) if added.size else table


def _put(column: npt.NDArray[Any], tokens: Ids, where: Ids, values: npt.NDArray[Any]) -> None:
    """Adds `values` to the column's entries of the distinct tokens `where`; ignores tokens without an entry."""
    if len(where) and len(tokens):
        places = np.searchsorted(tokens, where).clip(max=len(tokens) - 1)
        there = tokens[places] == where
        column[places[there]] += values[there].astype(column.dtype)
