"""Greedy float32 output is that of Hugging Face transformers: of the real model, and of a tiny one however computed."""

from dataclasses import replace

import interpreted_models
import lora_folders
import pytest

from legato_engine.runner.runner import Runner

TINY = lora_folders.RandomCheckpoint(replace(interpreted_models.LLAMA, max_length=1024))
LENGTHS = (5, 1, 12, 3, 33, 64, 17, 9, 2, 40, 48, 31, 8, 130, 277, 6)  # of 16 prompts


def check_all(oracle, run):
    for prompt, output in zip(run.prompts, run.outputs, strict=True):
        assert len(output) == run.new_tokens
        oracle.check(prompt, output)


def prefill_all(run, chunk):
    for index in range(len(run.prompts)):
        run.prefill(index, chunk)


def test_the_real_model(oracle_of, smollm2, prompts, sequences):
    """Prompts of all kinds, each computed whole, then decoded in one batch."""
    runner = Runner.load(smollm2, block_size=16, kv_cache_bytes=128 << 20, dtype="float32", threads=1, max_length=512)
    run = sequences(runner, prompts, 12)
    prefill_all(run, chunk=4096)
    run.decode(range(len(run.prompts)))
    check_all(oracle_of(smollm2), run)


@pytest.fixture(scope="module")
def tiny():
    """With room for all prompts twice."""
    return Runner.load(TINY, block_size=16, kv_cache_bytes=4 << 20, dtype="float32", threads=1, max_length=1024)


@pytest.fixture
def run(tiny, sequences):
    return sequences(tiny, interpreted_models.prompts(TINY.config.vocab_size, LENGTHS))


@pytest.mark.parametrize(("chunk", "batch"), [(4096, 8), (45, 16)])
def test_whole_prompts_and_chunks_that_end_in_the_middle_of_blocks(oracle_of, run, chunk, batch):
    prefill_all(run, chunk)
    for first in range(0, 16, batch):
        run.decode(range(first, first + batch))
    check_all(oracle_of(TINY), run)


def test_prefix_already_in_blocks(oracle_of, tiny, sequences):
    """The second sequence of a prompt takes over all full blocks of the first and computes only the rest."""
    chosen = interpreted_models.prompts(TINY.config.vocab_size, (64, 17, 40, 130, 277))
    run = sequences(tiny, chosen * 2)
    for index, prompt in enumerate(chosen):
        run.prefill(index, chunk=4096)
        shared, twin = (len(prompt) - 1) // 16, index + len(chosen)
        run.tables[twin][:shared] = run.tables[index][:shared]
        run.prefill(twin, chunk=4096, start=shared * 16)
    run.decode(range(2 * len(chosen)))
    check_all(oracle_of(TINY), run)


def test_mixed_batch_of_16(oracle_of, run):
    """Half of the sequences decode already when the prompts of the others join their steps."""
    early, late = range(0, 16, 2), range(1, 16, 2)
    run.prefill_together(early)
    for index in late:
        run.mixed_step(decoding=early, prefilling=index)
    run.decode(range(16))
    check_all(oracle_of(TINY), run)
