"""The backend for GPUs, with Triton's kernels in the interpreter: it computes what transformers computes."""

import itertools
from dataclasses import replace

import pytest
import torch
import window_tables
from interpreted_models import LLAMA, MODELS, load, prompts
from tiny_models import RandomCheckpoint

from legato_engine.backends import projections
from legato_engine.backends.cuda.backend import sizes
from legato_engine.backends.cuda.device import Interpreted
from legato_engine.scheduler.batch import Draw, Row
from legato_protocol.sampling.parameters import SamplingParams


@pytest.fixture
def llama():
    return RandomCheckpoint(LLAMA)


def check(oracle, run):
    for prompt, output in zip(run.prompts, run.outputs, strict=True):
        assert len(output) == run.new_tokens
        oracle.check(prompt, output)


def with_kv_scales(tensors):
    """Powers of two, with which numbers are rounded as without scales."""
    for layer in [name.removesuffix("k_proj.weight") for name in tensors if name.endswith("k_proj.weight")]:
        tensors |= {f"{layer}k_scale": torch.tensor([0.5, 0.125]), f"{layer}v_scale": torch.tensor(0.25)}


def in_parts(name):
    """Queries, keys and values of three forms, which are three products."""
    return {"q_proj": "Q4_1", "k_proj": "Q8_0"}.get(name.split(".")[-2])


LOADED = {
    **{name: (name, {}, {}) for name in ("mistral", "qwen 3", "qwen 3 moe", "odd sizes")},
    "biases of parts": ("biases", {"kinds": in_parts}, {}),
    "KV in e4m3": ("llama", {"change": with_kv_scales}, {"kv_dtype": "FP8"}),
}


@pytest.mark.parametrize("name", LOADED)
def test_greedy_tokens_are_those_of_transformers(name, oracle_of, sequences):
    """Prompts whole and in chunks, one beside sequences that decode, then all of them in one batch."""
    model, given, options = LOADED[name]
    checkpoint = RandomCheckpoint(MODELS[model], **given)
    run = sequences(load(checkpoint, **options), prompts(checkpoint.config.vocab_size, (5, 40, 17, 37)), new_tokens=3)
    run.prefill(0, chunk=256)
    run.prefill(1, chunk=29)
    run.mixed_step(decoding=[0, 1], prefilling=2)
    run.prefill(3, chunk=33)
    run.decode(range(4))

    check(oracle_of(RandomCheckpoint(MODELS[model]) if options else checkpoint, bool(options)), run)


@pytest.mark.parametrize(
    "name",
    ["phi 4 mini", "gemma 3", "granite", "olmo 2", "smollm 3", "qwen 2 moe", "mixtral", "gpt-oss", "glm 4 moe"],
)
def test_logits_of_a_family_are_those_of_transformers(name, oracle_of, greedy_draw):
    """Logits after a prompt's first chunk, after its second, and of a decoding row."""
    checkpoint, (tokens,) = RandomCheckpoint(MODELS[name]), prompts(320, (71,))
    runner, found = load(checkpoint), []
    for first, end in ((0, 50), (50, 70), (70, 71)):
        windows = window_tables.of_row(runner, range(5), first)
        row = Row(tokens[first:end], first, range(5), (greedy_draw,), windows=windows)
        found.append(runner.logits((row,))[0].clone())

    expected = oracle_of(checkpoint).logits(tokens[:50], [*tokens[50:], 0])[[0, 20, 21]]
    torch.testing.assert_close(torch.stack(found), expected, atol=1e-4, rtol=1e-3)


def test_embeddings_are_multiplied_in_their_own_type():
    """Gemma's factor is the root of its width, which bfloat16 rounds, in training as in transformers."""
    checkpoint = RandomCheckpoint(replace(MODELS["gemma 3"], embedding_multiplier=2560**0.5))
    assert projections.embedding_multiplier(checkpoint, torch.bfloat16) == 50.5
    assert projections.embedding_multiplier(checkpoint, torch.float32) == pytest.approx(2560**0.5)


class BFloat16(Interpreted):
    """As GPUs compute it: see `interpreted_bfloat16`."""

    def __init__(self):
        super().__init__(2)
        self.dtypes = (torch.bfloat16,)


@pytest.mark.parametrize(("gpu", "dtype", "atol"), [(Interpreted(2), "float16", 0.05), (BFloat16(), "bfloat16", 0.2)])
def test_half_precision_is_near(llama, gpu, dtype, atol):
    """Greedy tokens may tie in it; logits, which spread by 1.2, may not be far: those in float16 are off by up to 0.01,
    those in bfloat16, whose numbers are eight times as far apart, by 0.07."""
    exact, half = load(llama), load(llama, dtype=dtype, gpu=gpu)
    for tokens in prompts(320, (5, 40)):
        draw = Draw(0, len(tokens), SamplingParams(max_tokens=1, seed=0, temperature=0.0), tokens, len(tokens))
        row = Row(tokens, 0, [1, 2, 3, 4, 5], (draw,))
        torch.testing.assert_close(half.logits((row,)), exact.logits((row,)), atol=atol, rtol=0.02)


def test_steps_of_more_rows_than_expected(llama, oracle_of, sequences):
    """There is made room for them, and what was captured for smaller steps is captured again."""
    run = sequences(load(llama, max_batch=2, chunk_tokens=16), prompts(320, (9, 30, 12, 3, 21)), new_tokens=5)
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
    padding = [(larger - smaller) / smaller for smaller, larger in itertools.pairwise(sizes(1024)) if smaller >= 8]
    assert max(padding) <= 1
    assert len(sizes(1024)) == 39
