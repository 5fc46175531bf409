"""Masks on logits: whatever the vocabulary's size, and logits that are no numbers stay so on every path."""

import numpy as np
import pytest
import torch

from legato_engine.kernels.sampling import torch as by_torch
from legato_engine.sampling import constrain


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 100, 49_152])
@pytest.mark.parametrize("density", [0.0, 0.01, 0.5, 1.0])
def test_only_what_may_follow_stays_possible(vocabulary: int, density: float) -> None:
    random = np.random.default_rng(vocabulary)
    logits = random.standard_normal((4, vocabulary), dtype=np.float32)
    logits[2, -1] = np.nan
    words = (vocabulary + 1 + 31) // 32  # one bit more than the vocabulary, for the end
    allowed = random.random((2, 32 * words)) < density
    bits = np.packbits(allowed, axis=1, bitorder="little")
    masks: constrain.Masks = {row: bits[i].tobytes() for i, row in enumerate((0, 2))}
    expected = logits.copy()
    for i, row in enumerate((0, 2)):
        expected[row] += np.where(allowed[i, :vocabulary], np.float32(0), np.float32(-np.inf))
    masked = torch.from_numpy(logits.copy())
    constrain.apply(masked, {**masks, 1: b"", 3: "neither all of it nor a dead end changes anything"})
    assert np.array_equal(masked.numpy(), expected, equal_nan=True)
    elsewhere = torch.from_numpy(logits.copy())
    by_torch.mask(elsewhere, torch.tensor([0, 2]), torch.from_numpy(bits))
    assert np.array_equal(elsewhere.numpy(), expected, equal_nan=True)
