"""What changes logits before a token is chosen, as entries for a device: one for each token of a draw concerned.

The meaning is that of `adjust`. All that a device has to do with an entry is to take a logit, add, divide or multiply,
subtract, and bound it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from legato_engine.kernels.sampling.triton import FORBIDDEN, SEEN
from legato_engine.sampling.adjust import adjusts, forbidden
from legato_engine.scheduler.batch import Draw

Ids = npt.NDArray[np.int64]


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
    params = draw.params
    biased, seen = _ids(params.logit_bias), _seen(draw)
    said, counts = _said(draw)
    gone, allowed = np.unique(_ids(forbidden(draw))), _ids(params.allowed_token_ids)
    concerned = (allowed,) if len(allowed) else (biased, seen, said, gone)
    tokens = np.unique(np.concatenate(concerned))
    tokens = tokens[(tokens >= 0) & (tokens < vocab)]
    table = np.zeros((5, len(tokens)), np.int32)
    table[0], table[1] = index, tokens
    floats = table.view(np.float32)
    drops = np.float32(params.frequency_penalty) * counts.astype(np.float32) + np.float32(params.presence_penalty)
    _put(floats[2], tokens, biased, np.array(list(params.logit_bias.values()), np.float32))
    _put(floats[3], tokens, said, drops)
    _put(table[4], tokens, seen, np.full(len(seen), SEEN))
    _put(table[4], tokens, gone, np.full(len(gone), FORBIDDEN))
    return table


def _ids(tokens: Iterable[int]) -> Ids:
    return np.fromiter(tokens, np.int64)


def _seen(draw: Draw) -> Ids:
    """Tokens that the repetition penalty is for."""
    return np.unique(np.array(draw.tokens, np.int64)) if draw.params.repetition_penalty != 1 else _ids(())


def _said(draw: Draw) -> tuple[Ids, Ids]:
    """Tokens that frequency and presence penalties are for, and how often each was sampled."""
    if not (draw.params.frequency_penalty or draw.params.presence_penalty):
        return _ids(()), _ids(())
    return np.unique(np.array(draw.tokens[draw.prompt_len :], np.int64), return_counts=True)


def _put(column: npt.NDArray[Any], tokens: Ids, where: Ids, values: npt.NDArray[Any]) -> None:
    """Adds `values` where `column` has the tokens `where`, none of which comes twice; passes over those it has not."""
    if len(where) and len(tokens):
        places = np.searchsorted(tokens, where).clip(max=len(tokens) - 1)
        there = tokens[places] == where
        column[places[there]] += values[there].astype(column.dtype)
