"""Logprobs of prompts: those of transformers on the same weights, however the prompt was computed."""

from dataclasses import replace

import interpreted_models
import lora_folders
import pytest
import torch

from legato_engine.runner.plan import RunnerOptions
from legato_engine.runner.runner import Runner
from legato_engine.sampling.scores import Scores, rows_per_slice
from legato_engine.scheduler.batch import Batch, Draw, Row, Targets
from legato_protocol.sampling.parameters import SamplingParams

TOP = 5
NEAR = 2e-3  # float32 logprobs of the two implementations differ by less than this
# So many tokens that not all rows of a chunk have their logits at once.
TINY = lora_folders.RandomCheckpoint(replace(interpreted_models.LLAMA, vocab_size=40_000))


def tiny(block_size):
    return Runner.load(
        TINY, RunnerOptions(block_size=block_size, kv_cache_bytes=4 << 20, dtype="float32", max_length=512, threads=1)
    )


# Of ordinary length, so that slices of rows are cut as well.
PROMPT = interpreted_models.prompts(TINY.config.vocab_size, (170,))[0]
PARAMS = SamplingParams(max_tokens=1, seed=0, temperature=0.0)


@pytest.fixture(scope="module")
def expected(huggingface):
    """Logprobs of all tokens at each place of the prompt, by transformers."""
    with torch.inference_mode():
        return huggingface(TINY, TINY.config)(input_ids=torch.tensor([PROMPT])).logits[0].log_softmax(1)


def scored(runner, prompt, cuts, other=None):
    """Logprobs from steps that compute the prompt in these pieces, each in a batch with another row."""
    blocks, tokens = list(range(1, 1 + runner.layout.blocks_for(len(prompt) + 1))), []
    for begin, end in zip([0, *cuts], [*cuts, len(prompt)], strict=True):
        targets = Targets(prompt[begin + 1 : end + 1], TOP)
        draws = (Draw(0, end, PARAMS, prompt, end),) if end == len(prompt) else ()
        row = Row(prompt[begin:end], begin, blocks, draws, targets if targets.tokens else None)
        output = runner.step(Batch((other, row) if other is not None else (row,)))[-1]
        if row.targets is not None:
            assert not output.fault
            assert output.seconds > 0
            tokens += output.logprobs
    return tokens


def check(scores, prompt, expected):
    for token, found, truth in zip(prompt[1:], scores, expected[: len(prompt) - 1], strict=True):
        assert found.logprob == pytest.approx(float(truth[token]), abs=NEAR)
        near = [int((truth > truth[token] + shift).sum()) + 1 for shift in (2 * NEAR, -2 * NEAR)]
        assert near[0] <= found.rank <= near[1], "its place among all tokens, but for ties"
        best = truth.topk(TOP).values.tolist()
        assert [logprob for _, logprob in found.top] == pytest.approx(best, abs=NEAR)
        assert [float(truth[id]) for id, _ in found.top] == pytest.approx(best, abs=2 * NEAR)


@pytest.mark.parametrize("cuts", [[], [64, 100, 133]], ids=["whole", "chunks"])
def test_they_are_those_of_transformers(expected, cuts):
    check(scored(tiny(16), PROMPT, cuts), PROMPT, expected)


def test_few_rows_and_rows_of_others_change_nothing(expected):
    """Few rows are computed by a recorded program; the other row comes first in the step, and draws."""
    other = Row(PROMPT[:3], 0, [40], (Draw(0, 3, PARAMS, PROMPT, 3),))
    check(scored(tiny(16), PROMPT[:21], [8, 12], other), PROMPT[:21], expected)


def test_another_backend_agrees(expected):
    """By torch's own operators: no kernel takes blocks of 10."""
    runner = tiny(10)
    assert "torch's own operators" in runner.formats
    check(scored(runner, PROMPT, [70]), PROMPT, expected)


def naive(logits, target, alternatives):
    logprobs = logits.double().log_softmax(0).tolist()
    rank = 1 + sum(other > logprobs[target] for other in logprobs)
    return logprobs[target], rank, sorted(logprobs, reverse=True)[:alternatives]


@pytest.mark.parametrize("alternatives", [0, 1, 7])
def test_slices_are_joined(alternatives):
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(1)) * 4
    logits[3, 10:20] = -torch.inf
    targets = [0, 49, 7, 12, 5, 5, 6, 20, 1]
    scores = Scores(alternatives)
    scores.add(logits[:4], targets[:4])
    scores.add(logits[4:], targets[4:])
    packed, fault = scores.pack()
    assert not fault
    assert not packed.fault(50)
    for row, target, found in zip(logits, targets, packed, strict=True):
        own, rank, best = naive(row, target, alternatives)
        assert found.logprob == pytest.approx(max(own, -9999.0), abs=1e-4)
        assert found.rank == rank
        assert [logprob for _, logprob in found.top] == pytest.approx(best, abs=1e-4)
        assert [row[id] for id, _ in found.top] == sorted(row.tolist(), reverse=True)[:alternatives]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_a_fault(bad):
    logits = torch.zeros(2, 50)
    logits[1, 7] = bad
    scores = Scores(1)
    scores.add(logits, [1, 2])
    assert scores.pack()[1] == "the model's logits for it are not finite numbers"


def test_rows_per_slice_are_bounded_by_bytes():
    assert [rows_per_slice(vocabulary) for vocabulary in (49_152, 151_936, 1 << 20)] == [64, 32, 32]
