"""Logprobs of prompts: those of transformers on the same weights, however the prompt was computed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import interpreted_models
import lora_folders
import pytest
import torch

from legato_engine.runner.runner import Runner
from legato_engine.sampling.scores import Scores, rows_at_once
from legato_engine.scheduler.batch import Batch, Draw, Row, Scored, Targets
from legato_protocol.packed_logprobs import PromptToken
from legato_protocol.sampling_params import SamplingParams

TOP = 5
NEAR = 2e-3  # float32 logprobs of the two implementations differ by less than this
# So many tokens that not all rows of a chunk have their logits at once.
TINY = lora_folders.RandomCheckpoint(replace(interpreted_models.LLAMA, vocab_size=40_000))


def tiny(block_size: int) -> Runner:
    return Runner.load(TINY, block_size=block_size, kv_cache_bytes=4 << 20, dtype="float32", max_length=512, threads=1)


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    """Of ordinary length, so that slices of rows are cut as well."""
    return interpreted_models.prompts(TINY.config.vocab_size, (170,))[0]


@pytest.fixture(scope="module")
def expected(huggingface: Any, prompt: list[int]) -> torch.Tensor:
    """Logprobs of all tokens at each place of the prompt, by transformers."""
    model = huggingface(TINY, TINY.config)
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=torch.tensor([prompt])).logits[0].log_softmax(1)
    return found


def scored(runner: Any, prompt: list[int], cuts: Sequence[int], beside: Row | None = None) -> list[PromptToken]:
    """What steps tell that compute the prompt in these pieces, each beside another row."""
    blocks = list(range(1, 1 + runner.layout.blocks_for(len(prompt) + 1)))
    params = SamplingParams(max_tokens=1, seed=0, temperature=0.0)
    told: list[PromptToken] = []
    for begin, end in zip([0, *cuts], [*cuts, len(prompt)], strict=True):
        targets = Targets(prompt[begin + 1 : end + 1], TOP)
        draws = (Draw(0, end, params, prompt, end),) if end == len(prompt) else ()
        row = Row(prompt[begin:end], begin, blocks, draws, targets if targets.tokens else None)
        rows = (beside, row) if beside is not None else (row,)
        output = runner.step(Batch(rows))[-1]
        if row.targets is not None:
            assert isinstance(output, Scored)
            assert not output.fault
            assert output.seconds > 0
            told += output.logprobs
    return told


def check(told: list[PromptToken], prompt: list[int], expected: torch.Tensor) -> None:
    assert len(told) == len(prompt) - 1
    for place, (token, found) in enumerate(zip(prompt[1:], told, strict=True)):
        truth = expected[place]
        assert found.logprob == pytest.approx(float(truth[token]), abs=NEAR)
        near = [int((truth > truth[token] + shift).sum()) + 1 for shift in (2 * NEAR, -2 * NEAR)]
        assert near[0] <= found.rank <= near[1], "its place among all tokens, but for ties"
        best = truth.topk(TOP).values.tolist()
        assert [logprob for _, logprob in found.top] == pytest.approx(best, abs=NEAR)
        assert [float(truth[id]) for id, _ in found.top] == pytest.approx(best, abs=2 * NEAR)


@pytest.mark.parametrize("cuts", [[], [64, 100, 133]], ids=["whole", "chunks"])
def test_they_are_those_of_transformers(prompt: list[int], expected: Any, cuts: list[int]) -> None:
    check(scored(tiny(16), prompt, cuts), prompt, expected)


def test_few_rows_and_rows_of_others_change_nothing(prompt: list[int], expected: Any) -> None:
    """Few rows are computed by a recorded program; the other row comes first in the step, and draws."""
    short, params = prompt[:21], SamplingParams(max_tokens=1, seed=0, temperature=0.0)
    other = Row(prompt[:3], 0, [40], (Draw(0, 3, params, prompt, 3),))
    check(scored(tiny(16), short, [8, 12], other), short, expected)


def test_another_backend_agrees(prompt: list[int], expected: Any) -> None:
    """By torch's own operators: no kernel takes blocks of 10."""
    runner = tiny(10)
    assert "torch's own operators" in runner.formats
    check(scored(runner, prompt, [70]), prompt, expected)


def naive(logits: torch.Tensor, target: int, alternatives: int) -> tuple[float, int, list[float]]:
    logprobs = logits.double().log_softmax(0).tolist()
    rank = 1 + sum(other > logprobs[target] for other in logprobs)
    return logprobs[target], rank, sorted(logprobs, reverse=True)[:alternatives]


@pytest.mark.parametrize("alternatives", [0, 1, 7])
def test_slices_are_joined(alternatives: int) -> None:
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(1)) * 4
    logits[3, 10:20] = -torch.inf
    targets = [0, 49, 7, 12, 5, 5, 6, 20, 1]
    scores = Scores(alternatives)
    scores.add(logits[:4], targets[:4])
    scores.add(logits[4:], targets[4:])
    packed, fault = scores.packed()
    assert not fault
    assert not packed.fault(50)
    for row, target, found in zip(logits, targets, packed, strict=True):
        own, rank, best = naive(row, target, alternatives)
        assert found.logprob == pytest.approx(max(own, -9999.0), abs=1e-4)
        assert found.rank == rank
        assert [logprob for _, logprob in found.top] == pytest.approx(best, abs=1e-4)
        assert [row[id] for id, _ in found.top] == sorted(row.tolist(), reverse=True)[:alternatives]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_a_fault(bad: float) -> None:
    logits = torch.zeros(2, 50)
    logits[1, 7] = bad
    scores = Scores(1)
    scores.add(logits, [1, 2])
    assert scores.packed()[1] == "the model's logits for it are not finite numbers"


def test_rows_at_once_are_bounded_by_bytes() -> None:
    assert rows_at_once(49_152) == 64
    assert rows_at_once(151_936) == 32
    assert rows_at_once(1 << 20) == 32
