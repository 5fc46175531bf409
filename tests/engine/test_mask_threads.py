"""Masks of one step, computed by several threads, and on logits."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from grammar_vocabulary import COMPILER, END, TOKENS

from legato_engine.grammars.position import GrammarPosition
from legato_engine.kernels.torch import sampling as by_torch
from legato_engine.sampling import constrain
from legato_engine.sampling.mask_threads import MaskThreads
from legato_engine.scheduler.batch import Constraint, Draw
from legato_protocol.sampling.parameters import REGEX, SamplingParams

PARAMS = SamplingParams(max_tokens=9, seed=1, stop_token_ids=(END,))
PATIENCE = 60.0  # seconds; only a hang reaches it


def drawing(constraint: Constraint | None, output: Sequence[int] = ()) -> Draw:
    return Draw(0, len(output), PARAMS, output, 0, constraint)


class Meeting:
    """A constraint whose masks wait for one another, so that as many threads as there are have to compute them."""

    def __init__(self, barrier: threading.Barrier, fault: Exception | None = None) -> None:
        self._barrier = barrier
        self._fault = fault
        self.asked = 0

    def allowed(self, output: Sequence[int], stops: Sequence[int], early: bool) -> bytes:
        self.asked += 1
        self._barrier.wait(PATIENCE)
        if self._fault is not None:
            raise self._fault
        return b"\1\0\0\0"

    def at_start(self) -> "Meeting":
        return self


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_each_line_has_the_mask_that_it_has_alone(threads: int) -> None:
    grammar = COMPILER.compile(REGEX, "[a-z]{1,30}[0-9]")
    outputs = [list(b"abcdefgh"[: n % 8]) for n in range(40)] + [list(b"A")]
    draws = [drawing(GrammarPosition(grammar), output) for output in outputs]
    draws.insert(3, drawing(None))
    rows = range(7, 7 + len(draws))
    found = MaskThreads(threads).start(draws, rows).result()
    alone = [constrain.masks(constrain.due([draw], [row])) for draw, row in zip(draws, rows, strict=True)]
    assert found == {row: mask for masks in alone for row, mask in masks.items()}
    assert sorted(found) == [row for row in rows if row != 10]
    assert constrain.faults(found) == {rows[-1]: "its existing output does not match its grammar"}
    assert len(TOKENS) < 8 * len(found[7])


def test_a_fault_of_one_thread_is_raised() -> None:
    barrier = threading.Barrier(2)
    meeting = [Meeting(barrier), Meeting(barrier, ValueError("broken"))]
    with pytest.raises(ValueError, match="broken"):
        MaskThreads(2).start([drawing(each) for each in meeting], [0, 1]).result()


def test_a_step_without_constraints_has_no_masks() -> None:
    assert MaskThreads(2).start([drawing(None)], [0]).result() == {}
    assert MaskThreads(2).start([], []).result() == {}


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 100, 49_152])
@pytest.mark.parametrize("density", [0.0, 0.01, 0.5, 1.0])
def test_only_allowed_tokens_stay_possible_and_nan_stays_nan(vocabulary: int, density: float) -> None:
    random = np.random.default_rng(vocabulary)
    logits = random.standard_normal((4, vocabulary), dtype=np.float32)
    logits[2, -1] = np.nan
    words = (vocabulary + 1 + 31) // 32  # one bit more than the vocabulary, for the end
    allowed = random.random((2, 32 * words)) < density
    bits = np.packbits(allowed, axis=1, bitorder="little")
    expected, masked, elsewhere = logits.copy(), torch.tensor(logits), torch.tensor(logits)
    expected[[0, 2]] += np.where(allowed[:, :vocabulary], np.float32(0), np.float32(-np.inf))
    neither = {1: b"", 3: "neither all of it nor a dead end changes anything"}
    constrain.apply(masked, {0: bits[0].tobytes(), 2: bits[1].tobytes(), **neither})
    by_torch.mask(elsewhere, torch.tensor([0, 2]), torch.from_numpy(bits))
    for found in (masked, elsewhere):
        assert np.array_equal(found.numpy(), expected, equal_nan=True)
