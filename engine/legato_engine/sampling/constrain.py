"""Masks logits of sequences whose output has to match a grammar.

Masks are applied before everything else, so that penalties, filters and logprobs refer to allowed tokens, as in vLLM.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from legato_engine.kernels.cpu import sampling as by_numba
from legato_engine.kernels.torch import sampling as by_torch
from legato_engine.scheduler.batch import DeadEnd, Draw

Masks = dict[int, bytes | str]  # by row of the logits: the mask, empty if all tokens may follow; or why none may
Lines = deque[list[tuple[int, Draw]]]  # by sequence: rows of the logits that need a mask, each with one of its draws


def due(draws: Sequence[Draw], rows: Sequence[int]) -> Lines:
    """Returns the constrained rows of logits. Draw i is from row `rows[i]`; draws of one row are of one sequence.

    Rows of one sequence are together, since only one thread may follow its constraint.
    """
    by_sequence: dict[int, dict[int, Draw]] = {}
    for draw, row in zip(draws, rows, strict=True):
        if draw.constraint is not None:
            by_sequence.setdefault(id(draw.constraint), {}).setdefault(row, draw)
    return deque([list(constrained.items()) for constrained in by_sequence.values()])


def masks(lines: Lines) -> Masks:
    """Computes masks until no lines are left; several threads may take from the same lines."""
    computed: Masks = {}
    while True:
        try:
            of_sequence = lines.popleft()
        except IndexError:
            return computed
        for row, draw in of_sequence:
            try:
                computed[row] = _allowed(draw)
            except DeadEnd as fault:
                computed[row] = str(fault)


def apply(logits: torch.Tensor, masks: Masks) -> None:
    """Applies masks to `logits` (float32 [R, vocab]) in place."""
    rows, bits = pack(masks)
    if not len(rows):
        return
    if logits.device.type == "cpu":
        by_numba.mask(logits.numpy(), rows, bits)
        return
    given = torch.from_numpy(bits.view(np.uint8).copy()).to(logits.device)
    by_torch.mask(logits, torch.from_numpy(rows).to(logits.device), given)


def pack(masks: Masks) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """Returns the rows with a mask, [rows], and the bits of their allowed tokens, [rows, words]."""
    by_row = {row: mask for row, mask in masks.items() if isinstance(mask, bytes) and mask}
    words = np.frombuffer(b"".join(by_row.values()), np.uint32)
    return np.array(list(by_row), np.int64), words.reshape(len(by_row), -1) if by_row else words.reshape(0, 0)


def faults(masks: Masks) -> dict[int, str]:
    """Returns the reason for each row in which no token may follow."""
    return {row: fault for row, fault in masks.items() if isinstance(fault, str)}


def _allowed(draw: Draw) -> bytes:
    assert draw.constraint is not None
    output, params = draw.tokens[draw.prompt_len :], draw.params
    return draw.constraint.allowed(output, params.stop_token_ids, len(output) < params.min_tokens)
