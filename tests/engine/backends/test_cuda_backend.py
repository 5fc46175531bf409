"""The backend for GPUs, with Triton's kernels in the interpreter: it computes what transformers computes."""

import itertools

import lora_folders
import pytest
import torch
from interpreted_models import LLAMA, MODELS, load, prompts

from legato_engine.backends.cuda.backend import sizes
from legato_engine.scheduler.batch import Draw, Row
from legato_protocol.sampling_params import SamplingParams


@pytest.fixture(params=MODELS)
def checkpoint(request):
    return lora_folders.RandomCheckpoint(MODELS[request.param])


@pytest.fixture
def llama():
    return lora_folders.RandomCheckpoint(LLAMA)


def check(oracle, run):
    for prompt, output in zip(run.prompts, run.outputs, strict=True):
        assert len(output) == run.new_tokens
        oracle.check(prompt, output)


def test_greedy_tokens_are_those_of_transformers(checkpoint, oracle_of, sequences):
    """Prompts whole and in chunks, one beside sequences that decode, then all of them in one batch."""
    run = sequences(load(checkpoint), prompts(checkpoint.config.vocab_size), new_tokens=6)
    run.prefill(0, chunk=256)
    run.prefill(1, chunk=19)
    run.mixed_step(decoding=[0, 1], prefilling=2)
    run.prefill(3, chunk=33)
    run.decode(range(4))

    check(oracle_of(checkpoint), run)


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_a_prefix_that_is_in_blocks_already(llama, oracle_of, sequences, block_size):
    run = sequences(load(llama, block_size=block_size), prompts(320, (100, 100)), new_tokens=4)
    run.prompts[1] = list(run.prompts[0])
    run.prefill(0, chunk=256)
    shared = 64 // block_size
    run.tables[1][:shared] = run.tables[0][:shared]
    run.prefill(1, chunk=256, start=64)
    run.decode([0, 1])

    assert run.outputs[0] == run.outputs[1]
    check(oracle_of(llama), run)


def test_half_precision_is_near(llama):
    """Greedy tokens may tie in it; logits may not be far."""
    exact, half = load(llama), load(llama, dtype="float16")
    for tokens in prompts(320):
        row = Row(tokens, 0, [1, 2, 3, 4, 5], _draws(tokens))
        torch.testing.assert_close(half.logits((row,)), exact.logits((row,)), atol=0.05, rtol=0.02)


def _draws(tokens):
    return (Draw(0, len(tokens), SamplingParams(max_tokens=1, seed=0, temperature=0.0), tokens, len(tokens)),)


def test_steps_of_more_rows_than_expected(llama, oracle_of, sequences):
    """There is made room for them, and what was captured for smaller steps is captured again."""
    run = sequences(load(llama, max_batch=2, chunk_tokens=16), prompts(320, (9, 30, 12, 3, 21)), new_tokens=6)
    run.prefill(0, chunk=256)
    run.prefill(1, chunk=256)
    first = [run.mixed_step(decoding=[0, 1], prefilling=index) for index in (2, 3, 4)]
    run.decode(range(5))

    assert len(first) == 3
    check(oracle_of(llama), run)


def test_sizes_of_captured_steps():
    assert sizes(1) == (1,)
    assert sizes(8) == (1, 2, 4, 8)
    assert sizes(100) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100)
    padding = [larger - smaller for smaller, larger in itertools.pairwise(sizes(256))]
    assert max(padding) == 16
