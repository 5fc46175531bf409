"""Greedy float32 output of the real model is that of Hugging Face transformers, however it was computed."""

import pytest


@pytest.fixture(scope="module")
def unified(smollm2_float32, prompts, sequences):
    """All prompts, each computed whole, then decoded in batches of eight."""
    run = sequences(smollm2_float32, prompts)
    for index in range(len(prompts)):
        run.prefill(index, chunk=4096)
    for first in range(0, len(prompts), 8):
        run.decode(range(first, first + 8))
    return run


def check_all(oracle, run):
    for prompt, output in zip(run.prompts, run.outputs, strict=True):
        assert len(output) == run.new_tokens
        oracle.check(prompt, output)


def test_prompts_are_varied(prompts):
    lengths = [len(prompt) for prompt in prompts]

    assert len(prompts) >= 16
    assert min(lengths) < 4
    assert max(lengths) == 1104


def test_whole_prompts(oracle, unified):
    check_all(oracle, unified)


def test_chunked_prefill(oracle, smollm2_float32, prompts, sequences):
    """Chunks that end in the middle of blocks; all sequences then decode in one batch of 16."""
    run = sequences(smollm2_float32, prompts)
    for index in range(len(prompts)):
        run.prefill(index, chunk=173)
    run.decode(range(len(prompts)))

    check_all(oracle, run)


def test_prefix_already_in_blocks(oracle, smollm2_float32, prompts, sequences):
    """The second sequence of a prompt takes over all full blocks of the first and computes only the rest."""
    chosen = [4, 5, 10, 13, 15]
    first = sequences(smollm2_float32, [prompts[i] for i in chosen] * 2)
    for index in range(len(chosen)):
        first.prefill(index, chunk=4096)
        shared = (len(prompts[chosen[index]]) - 1) // 16
        twin = index + len(chosen)
        first.tables[twin][:shared] = first.tables[index][:shared]
        first.prefill(twin, chunk=4096, start=shared * 16)
    first.decode(range(2 * len(chosen)))

    check_all(oracle, first)


def test_mixed_batch_of_16(oracle, smollm2_float32, prompts, sequences):
    """Half of the sequences decode already when the prompts of the others join their steps."""
    run = sequences(smollm2_float32, prompts)
    early, late = range(0, 16, 2), range(1, 16, 2)
    run.prefill_together(early)
    for index in late:
        run.mixed_step(decoding=early, prefilling=index)
    run.decode(range(16))

    check_all(oracle, run)
