"""Logits of sequences whose output has to match something: all tokens that may not follow become impossible.

That comes before everything else, so that penalties, filters and logprobs are of what can be sampled, as in vLLM.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from legato_engine.kernels.sampling import numba as by_numba
from legato_engine.kernels.sampling import torch as by_torch
from legato_engine.scheduler.batch import DeadEnd, Draw

Masks = dict[int, bytes | str]  # by line of the logits: the mask, empty where all may follow, or why nothing may


Lines = deque[tuple[int, Draw]]  # lines of the logits that a mask is due for, and a draw of the sequence of each


def due(draws: Sequence[Draw], rows: Sequence[int]) -> Lines:
    """The lines of logits with a constraint; draw i is from line `rows[i]`. Draws of one line are of one sequence."""
    found: dict[int, Draw] = {}
    for draw, row in zip(draws, rows, strict=True):
        if draw.constraint is not None:
            found.setdefault(row, draw)
    return deque(found.items())


def masks(lines: Lines) -> Masks:
    """Takes lines until none is left, also beside other threads that take from the same."""
    found: Masks = {}
    while True:
        try:
            row, draw = lines.popleft()
        except IndexError:
            return found
        try:
            found[row] = _allowed(draw)
        except DeadEnd as fault:
            found[row] = str(fault)


def apply(logits: torch.Tensor, masks: Masks) -> None:
    """Changes `logits` (float32 [R, vocab]) in place, in the lines that may go on."""
    rows, bits = packed(masks)
    if not len(rows):
        return
    if logits.device.type == "cpu":
        by_numba.mask(logits.numpy(), rows, bits)
        return
    given = torch.from_numpy(bits.view(np.uint8).copy()).to(logits.device)
    by_torch.mask(logits, torch.from_numpy(rows).to(logits.device), given)


def packed(masks: Masks) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """The lines that something may not follow in, [lines], and the bits of what may, [lines, words]."""
    held = {row: mask for row, mask in masks.items() if isinstance(mask, bytes) and mask}
    words = np.frombuffer(b"".join(held.values()), np.uint32)
    return np.array(list(held), np.int64), words.reshape(len(held), -1) if held else words.reshape(0, 0)


def faults(masks: Masks) -> dict[int, str]:
    """Lines that may not go on, and why."""
    return {row: fault for row, fault in masks.items() if isinstance(fault, str)}


def _allowed(draw: Draw) -> bytes:
    assert draw.constraint is not None
    output, params = draw.tokens[draw.prompt_len :], draw.params
    return draw.constraint.allowed(output, params.stop_token_ids, len(output) < params.min_tokens)
