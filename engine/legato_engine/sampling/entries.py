"""What changes logits before a token is chosen, as entries for a device: one for each token of a draw concerned.

The meaning is that of `adjust`. All that a device has to do with an entry is to take a logit, add, divide or multiply,
subtract, and bound it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from legato_engine.kernels.sampling.triton import FORBIDDEN, SEEN
from legato_engine.sampling.adjust import Ids, adjusts, forbidden, penalized, penalties
from legato_engine.scheduler.batch import Draw


class Entries(NamedTuple):
    """`table` is what `kernels.sampling.triton.change` takes; `changes` a line of its own for each draw that changes
    its logits, -1 for others."""

    table: npt.NDArray[np.int32]
    changes: list[int]


def collect(draws: Sequence[Draw], vocab: int) -> Entries:
    """Of a draw with `allowed_token_ids` only tokens with an entry may be sampled."""
    changing = [index for index, draw in enumerate(draws) if adjusts(draw)]
    changes = [-1] * len(draws)
    for line, index in enumerate(changing):
        changes[index] = line
    tables = [_table(index, draws[index], vocab) for index in changing]
    return Entries(np.concatenate(tables, axis=1) if tables else np.empty((5, 0), np.int32), changes)


def _table(index: int, draw: Draw, vocab: int) -> npt.NDArray[np.int32]:
    params, gone = draw.params, set(forbidden(draw))
    others = _within(params.allowed_token_ids or (*params.logit_bias, *gone), vocab)
    table = _including(_penalized(index, draw), index, others)
    biases = np.array(list(params.logit_bias.values()), np.float32)
    _put(table[2].view(np.float32), table[1], _ids(params.logit_bias), biases)
    _put(table[4], table[1], _ids(gone), np.full(len(gone), FORBIDDEN))
    return table[:, np.searchsorted(table[1], others)] if params.allowed_token_ids else table


def _ids(tokens: Iterable[int]) -> Ids:
    return np.fromiter(tokens, np.int64)


def _within(tokens: Iterable[int], vocab: int) -> Ids:
    """Those that the logits have, ascending, each once."""
    return _ids(sorted({token for token in tokens if 0 <= token < vocab}))


def _penalized(index: int, draw: Draw) -> npt.NDArray[np.int32]:
    """The table of penalties alone. As any other it is in the order of tokens."""
    if not penalized(draw):
        return np.empty((5, 0), np.int32)
    tokens, drops = penalties(draw)
    table = np.zeros((5, len(tokens)), np.int32)
    table[0], table[1], table[3] = index, tokens, drops.view(np.int32)
    table[4] = SEEN if draw.params.repetition_penalty != 1 else 0
    return table


def _including(table: npt.NDArray[np.int32], index: int, tokens: Ids) -> npt.NDArray[np.int32]:
    """The same with an entry for each of `tokens`, which are ascending. They are few: nothing is sorted anew."""
    places = np.searchsorted(table[1], tokens)
    lacking = np.append(table[1], -1)[places] != tokens
    added = np.zeros((5, np.count_nonzero(lacking)), np.int32)
    added[0], added[1] = index, tokens[lacking]
    return np.insert(table, places[lacking], added, axis=1) if added.size else table


def _put(column: npt.NDArray[Any], tokens: Ids, where: Ids, values: npt.NDArray[Any]) -> None:
    """Adds `values` where `column` has the tokens `where`, none of which comes twice; passes over those it has not."""
    if len(where) and len(tokens):
        places = np.searchsorted(tokens, where).clip(max=len(tokens) - 1)
        there = tokens[places] == where
        column[places[there]] += values[there].astype(column.dtype)
