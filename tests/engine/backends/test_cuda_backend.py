"""The backend for GPUs, with Triton's kernels in the interpreter: it computes what transformers computes."""

import itertools
from dataclasses import replace
from functools import partial
from threading import Lock

import pytest
import torch
import window_tables
from interpreted_models import LLAMA, MODELS, load, prompts, random_weights
from ranks_in_threads import RankThreads
from recorded_graphs import RecordedGraphs
from tiny_models import RandomCheckpoint
from triton.runtime.interpreter import GridExecutor

from legato_engine.backends import projections
from legato_engine.backends.cuda.device import Interpreted
from legato_engine.backends.cuda.sizes import decoding_rows, early, near, padded
from legato_engine.backends.cuda.workspace import Room, Size
from legato_engine.runner.ranks import loading as ranks
from legato_engine.scheduler.batch import Batch, Draw, Row
from legato_engine.weights.quantization import rounding
from legato_protocol.sampling.parameters import SamplingParams


def one_at_a_time(call):
    """The interpreter is not made for several threads."""
    lock = Lock()

    def locked(*given, **named):
        with lock:
            return call(*given, **named)

    return locked


@pytest.fixture
def llama():
    return RandomCheckpoint(LLAMA)


def check(oracle, run):
    for prompt, output in zip(run.prompts, run.outputs, strict=True):
        assert len(output) == run.new_tokens
        oracle.check(prompt, output)


def replaying(checkpoint, **options):
    """A runner that replays all steps, from graphs that repeat recorded calls."""
    runner = load(checkpoint, gpu=RecordedGraphs(2), **options)
    runner.capture()
    return runner


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
    runner = replaying(checkpoint, **options)
    run = sequences(runner, prompts(checkpoint.config.vocab_size, (5, 40, 17, 37)), new_tokens=3)
    run.prefill(0, chunk=256)
    run.prefill(1, chunk=29)
    run.mixed_step(decoding=[0, 1], prefilling=2)
    run.prefill(3, chunk=33)
    run.decode(range(4))

    check(oracle_of(RandomCheckpoint(MODELS[model]) if options else checkpoint, bool(options)), run)


@pytest.mark.parametrize(("name", "degree"), [("olmo 2", 2), ("gpt-oss", 2), ("FP8", 2)])
def test_ranks_compute_the_same_together(name, degree, sequences, monkeypatch):
    """Replayed, with an arena for each rank, and copies of blocks. The log says how they add."""
    monkeypatch.setattr(ranks, "join_group", lambda *_: "sums by a group")
    weights = rounding.rounded(RandomCheckpoint(LLAMA), "FP8") if name == "FP8" else random_weights(name)
    monkeypatch.setattr(ranks, "OtherRanks", partial(RankThreads, checkpoint=weights, gpu=partial(Interpreted, 2)))
    monkeypatch.setattr(GridExecutor, "__call__", one_at_a_time(GridExecutor.__call__))
    outputs = []
    for options in ({}, {"tensor": degree, "threads": 1}):
        runner = load(weights, **options)
        assert runner.formats.endswith("; sums by a group") == bool(options)
        runner.capture()
        run = sequences(runner, prompts(320, (5, 17, 9)), new_tokens=2)
        run.prefill(0, chunk=256)
        run.prefill(1, chunk=12)
        if not runner.layout.windows:
            (copied,) = run.tables[0]
            runner.step(Batch((), copies=((copied, runner.num_blocks - 1),)))
            run.tables[0][:] = [runner.num_blocks - 1]
        run.mixed_step(decoding=[0, 1], prefilling=2)
        run.decode(range(3))
        outputs.append(run.outputs)

    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("name", ["qwen 2 moe", "FP8, blocks"])
@torch.inference_mode()
def test_replayed_steps_are_eager_ones(name, greedy_draw):
    """To the last bit, with other inputs than those captured; before that they are padded to a larger step."""
    weights, tokens = random_weights(name), prompts(320, (40, 17, 30))
    torch.manual_seed(0)
    eager = load(weights)
    torch.manual_seed(0)
    replayed = replaying(weights)

    def row(index, first, end, draws=(greedy_draw,)):
        blocks = range(1 + 3 * index, 4 + 3 * index)
        windows = window_tables.of_row(replayed, blocks, first)
        return Row(tokens[index][first:end], first, blocks, draws, windows=windows)

    steps = (
        (row(0, 0, 30), row(1, 0, 9)),
        (row(1, 9, 10), row(0, 30, 39, ()), row(2, 0, 2)),
        (row(1, 10, 14), row(2, 2, 10)),  # rows of few tokens, as those that decode
        (row(2, 10, 29, ()),),
        (row(0, 39, 40), row(1, 14, 15), row(2, 29, 30)),
    )
    for rows in steps:
        expected = eager.logits(rows)
        torch.testing.assert_close(replayed.logits(rows), expected, atol=1e-4, rtol=1e-3)
        replayed.capture_missing()
        assert torch.equal(replayed.logits(rows), expected)


@pytest.mark.parametrize(
    "name",
    [
        "phi 4 mini", "gemma 3", "granite", "olmo 2", "olmo 3", "seed oss", "exaone 4", "smollm 3", "qwen 2 moe",
        "mixtral", "gpt-oss", "glm 4 moe",
    ],
)  # fmt: skip
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
    run = sequences(replaying(llama, max_batch=2, chunk_tokens=16), prompts(320, (9, 30, 12, 3, 21)), new_tokens=5)
    run.prefill(0, chunk=256)
    run.prefill(1, chunk=256)
    first = [run.mixed_step(decoding=[0, 1], prefilling=index) for index in (2, 3, 4)]
    run.decode(range(5))

    assert len(first) == 3
    check(oracle_of(llama), run)


def test_sizes_of_steps_that_decode():
    assert decoding_rows(1) == (1,)
    assert decoding_rows(8) == (1, 2, 4, 8)
    assert decoding_rows(100) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100)
    padding = [(larger - smaller) / smaller for smaller, larger in itertools.pairwise(decoding_rows(1024))]
    assert max(padding[3:]) <= 1
    assert len(decoding_rows(1024)) == 39


ROOM = Room(2048 + 64, 64, 128, 64, samples=64 * 5)
PADDED = {
    Size(5, 5, 5, False): Size(8, 8, 8, False),
    Size(2, 2, 0, False): Size(2, 2, 2, False),
    Size(17, 1, 0, True): Size(32, 8, 0, True),
    Size(300, 9, 4, True): Size(320, 64, 64, True),
    Size(512 + 32, 33, 33, True): Size(576, 64, 64, True),
    Size(2048 + 63, 64, 64, True): Size(2112, 64, 64, True),
    Size(5, 1, 5, False): Size(16, 8, 8, False),  # rows that sample after each token
    Size(64 * 5, 64, 64 * 5, False): Size(320, 64, 320, False),
    Size(2000, 60, 290, True): Size(2048, 64, 320, True),
}


def test_padded_sizes_hold_the_step_and_fit_the_room():
    assert {size: padded(size, ROOM) for size in PADDED} == PADDED


@pytest.mark.parametrize("rows", [1, 8, 64, 100, 1024])
def test_any_step_can_be_padded_to_a_size_that_is_captured_early(rows):
    room = Room(1, rows, 128, 64).enlarged(Size(512 + rows, rows, 5 * rows, True))
    for tokens in range(1, room.tokens + 1):
        for count in {1, min(tokens, rows, 9), min(tokens, rows)}:
            for samples in (0, count, min(tokens, 5 * count)):
                size = Size(tokens, count, samples, tokens > 8 * count)
                wanted = padded(size, room)
                assert wanted.covers(size)
                assert any(near(each, wanted) for each in early(room)), wanted
    assert len(early(room)) < 25
