"""Drawing by the weights of tokens near the largest comes to the tokens that all weights come to."""

import numpy as np
import pytest
from budget import times

from legato_engine.kernels.cpu import sampling as kernel

VOCAB = 3000
SHAPES = ["peaked", "even", "ties", "masked", "flat"]


def rows_of(shape, seed, rows=8):
    """float32 [rows, VOCAB], divided by a temperature already."""
    random = np.random.default_rng(seed)
    logits = (random.standard_normal((rows, VOCAB)) * {"even": 3, "flat": 0.01}.get(shape, 2)).astype(np.float32)
    if shape != "flat":
        for row in logits:
            row[random.integers(0, VOCAB, 30)] += random.choice([0, 4, 8, 12], 30)
    if shape == "ties":
        logits = np.round(logits * 2) / 2
    if shape == "masked":
        logits[:, 1::3] = -np.inf
    return logits


def by_all(logits, top_k, top_p, number):
    """The token by the weights of the whole vocabulary."""
    scaled, weights = np.empty(VOCAB, np.float32), np.empty(VOCAB)
    ids = np.empty(VOCAB + 1, np.int64)
    most, sound = kernel._scale(logits, np.float32(1), scaled)
    assert sound
    total = kernel._weigh(scaled, most, weights)
    floor, count = kernel._threshold(scaled, weights, most, total, top_k, top_p, np.float32(0), ids)
    return kernel._inverted(scaled, weights, floor, ids, count, number)


def draw(logits, top_ks, top_ps, numbers):
    """Draws one token from each row by the kernel."""
    count = len(logits)
    tokens, sound = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    ones, none = np.ones(count, np.float32), np.zeros(count, np.float32)
    kernel.draw(logits, np.arange(count), ones, top_ks, top_ps, none, numbers, tokens, sound)
    assert sound.all()
    return tokens.tolist()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("top_k", [0, 1, 20, 700])
def test_tokens_are_those_that_all_weights_come_to(shape, top_k):
    for seed in range(times(5)):
        logits, random = rows_of(shape, seed), np.random.default_rng(seed)
        top_ps, numbers = random.choice([1e-6, 0.3, 0.8, 0.9, 0.95, 0.999, 1.0], 8), 1 - random.random(8)
        expected = [by_all(logits[i], top_k, top_ps[i], numbers[i]) for i in range(8)]
        assert draw(logits, np.full(8, top_k), top_ps, numbers) == expected


@pytest.mark.parametrize("off", [-1e-5, -1e-7, 1e-7, 1e-5])
def test_a_border_as_near_as_the_rough_sum_is_wrong_is_found_by_all_weights(off):
    """`number` 1 asks for the last token kept."""
    for seed in range(times(5)):
        logits = rows_of("peaked", seed)
        best = np.sort(logits.astype(np.float64), 1)[:, ::-1]
        shares = np.exp(best - best[:, :1]).cumsum(1) / np.exp(best - best[:, :1]).sum(1, keepdims=True)
        top_ps, ones = shares[:, 3] + off, np.ones(8)
        expected = [by_all(logits[i], 0, top_ps[i], 1.0) for i in range(8)]
        assert draw(logits, np.zeros(8, np.int64), top_ps, ones) == expected
