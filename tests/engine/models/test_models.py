"""Tiny random models of each shape compute what transformers computes from the same weights."""

from functools import partial
from itertools import pairwise

import pytest
import torch
import window_tables
from ranks_in_threads import RankThreads
from tiny_families import FAMILIES
from tiny_models import PROCESSORS, RandomCheckpoint, llama, prompt

from legato_engine import processor
from legato_engine.errors import TooLittleMemory
from legato_engine.layers import rotary
from legato_engine.models.config import ModelConfig, from_huggingface
from legato_engine.runner import runner as runners
from legato_engine.runner.plan import RunnerOptions
from legato_engine.runner.ranks import loading as ranks
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Batch, Row
from legato_protocol.model_files.degrees import unfit_degree

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def yarn(**changes):
    given = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128} | changes
    sizes = ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "vocab_size")
    raw = dict.fromkeys(sizes, 32) | {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 512}
    return from_huggingface(raw | {"num_attention_heads": 1, "rope_scaling": given}, "here").rope_scaling


SHAPES = {
    "llama 2": llama(kv_heads=6),
    "llama 3": llama(rope_theta=500000.0, rope_scaling=LLAMA3, tie_word_embeddings=True),
    "mistral": llama(architecture="MistralForCausalLM", sliding_window=48),
    "qwen 2": llama(architecture="Qwen2ForCausalLM", rope_theta=1e6, tie_word_embeddings=True),
    "qwen 2, windows": llama(architecture="Qwen2ForCausalLM", sliding_window=48, full_attention=(0,)),
    "qwen 3": llama(architecture="Qwen3ForCausalLM", rope_theta=1e6, head_dim=64),
    "qwen 3, odd sizes": llama(architecture="Qwen3ForCausalLM", hidden_size=63, head_dim=20, intermediate_size=100),
    "yarn": llama(architecture="Qwen2ForCausalLM", rope_scaling=yarn()),
    "yarn, all told": llama(rope_scaling=yarn(beta_fast=16.0, beta_slow=2.0, attention_factor=1.3, truncate=False)),
    "yarn, mscale": llama(rope_scaling=yarn(mscale=1.5, mscale_all_dim=0.5)),
    "odd vocabulary": llama(vocab_size=333),
    "biases": llama(attention_bias=True, mlp_bias=True, rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "odd sizes": llama(hidden_size=63, head_dim=20, heads=3, kv_heads=1, intermediate_size=100, vocab_size=500),
    **FAMILIES,
}


def load(checkpoint, dtype="float32", **changes):
    given = {"block_size": 16, "kv_cache_bytes": 16 << 20, "threads": 2, "max_length": 1024} | changes
    return Runner.load(checkpoint, RunnerOptions(dtype=dtype, **given))


def last_logits(runner, tokens, chunk, draws, singles=0):
    """Logits after the last token of one sequence, computed in chunks and the last `singles` tokens one by one,
    alongside a decoding sequence."""
    table = list(range(3, 3 + runner.layout.blocks_for(len(tokens))))
    with torch.inference_mode():
        alone = range(len(tokens) - singles, len(tokens))
        for start, end in pairwise([*range(0, alone.start, chunk), *alone, len(tokens)]):
            other = Row([5], 0, [1], draws, windows=window_tables.of_row(runner, [1]))
            windows = window_tables.of_row(runner, table, start)
            piece = Row(tokens[start:end], start, table, draws, windows=windows)
            found = runner.logits((other, piece))
    return found[1]


@pytest.fixture
def draws(greedy_draw):
    return (greedy_draw,)


def factors(scaling):
    """A GGUF of Llama 3 has these instead of the constants that they were made from."""
    found = rotary.frequencies(32, 10000.0, None) / rotary.frequencies(32, 10000.0, scaling)
    assert found.max() > 2
    return {"rope_type": "factors", "factors": tuple(found.tolist())}


@pytest.mark.parametrize(
    ("name", "length", "chunk"),
    [
        *((name, 500, 96) for name in SHAPES),
        ("factors", 200, 64),
        # In one step, and in steps of few tokens, by kernels and by torch's operators.
        *((name, *size) for name in ("mistral", "odd sizes") for size in ((63, 63), (100, 17), (500, 500))),
    ],
)
def test_logits_are_those_of_transformers(name, length, chunk, draws, huggingface):
    truth = SHAPES.get(name) or llama(rope_scaling=LLAMA3)
    checkpoint = RandomCheckpoint(SHAPES.get(name) or llama(rope_scaling=factors(LLAMA3)))
    tokens = prompt(length, length)
    with torch.inference_mode():
        expected = huggingface(checkpoint, truth)(input_ids=torch.tensor([tokens])).logits[0, -1]

    found = last_logits(load(checkpoint), tokens, chunk, draws)

    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


def fits(config: ModelConfig, degree: int) -> bool:
    return not unfit_degree(degree, config.heads, config.kv_heads, config.inner_sizes)


@pytest.mark.parametrize(
    ("name", "degree"), [(name, degree) for name in SHAPES for degree in (2, 4) if fits(SHAPES[name], degree)]
)
def test_ranks_compute_the_same_together(name, degree, draws, monkeypatch):
    checkpoint, tokens = RandomCheckpoint(SHAPES[name]), prompt(300, 300)
    monkeypatch.setattr(ranks, "OtherRanks", partial(RankThreads, checkpoint=checkpoint))
    expected = last_logits(load(checkpoint), tokens, 96, draws, 3)

    found = last_logits(load(checkpoint, threads=1, tensor=degree), tokens, 96, draws, 3)

    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(("kind", "kv"), [("Q6_K", "auto"), ("Q4_K", "FP8"), ("Q8_0", "auto")])
def test_ranks_compute_from_codes_and_with_the_scales_of_their_own_heads(kind, kv, draws, monkeypatch):
    """Four ranks have 64 inputs of an output projection, whose codes have a factor for 256, and two each KV head."""
    sizes = llama(hidden_size=256, heads=8, intermediate_size=512, vocab_size=333, tie_word_embeddings=True)
    names = [f"model.layers.{layer}.self_attn.{which}_scale" for layer in range(2) for which in "kv"]
    scales = {name: torch.tensor([0.02, 0.5]) for name in names}
    checkpoint = RandomCheckpoint(sizes, lambda tensors: tensors.update(scales), lambda _name: kind)
    monkeypatch.setattr(ranks, "OtherRanks", partial(RankThreads, checkpoint=checkpoint))
    given = {"dtype": "auto", "kv_dtype": kv, "threads": 1, "instructions": PROCESSORS["codes"]}
    alone, together = load(checkpoint, **given), load(checkpoint, tensor=4, **given)
    expected, found = (last_logits(runner, prompt(300, 60), 40, draws, 3) for runner in (alone, together))

    most = 0.03 if kv == "FP8" else 1e-4  # a sum in another order may round to the next code
    assert error(found, expected) < most
    assert error(together.arena.blocks.float(), alone.arena.blocks.float()) < most


@pytest.mark.parametrize("name", [name for name in FAMILIES if "," not in name])
def test_greedy_tokens_of_a_family_are_those_of_transformers(name, oracle_of, sequences):
    """Prompts whole, in chunks, and after blocks that another one left."""
    checkpoint = RandomCheckpoint(FAMILIES[name])
    run = sequences(load(checkpoint), [prompt(seed, length) for seed, length in enumerate((5, 70, 600, 600))], 32)
    run.prompts[3][:500] = run.prompts[2][:500]
    run.tables[3][:30] = run.tables[2][:30]
    for index, chunk, start in ((0, 4096, 0), (1, 29, 0), (2, 256, 0), (3, 4096, 480)):
        run.prefill(index, chunk, start)
    run.decode(range(4))

    oracle = oracle_of(checkpoint)
    for given, output in zip(run.prompts, run.outputs, strict=True):
        assert len(output) == 32
        oracle.check(given, output)


def error(found, exact):
    return (found - exact).norm() / exact.norm()


@pytest.mark.parametrize(
    ("dtype", "block_size"), [("float32", 1), ("float32", 8), ("float32", 20), ("auto", 1), ("auto", 20), ("auto", 64)]
)
def test_logits_do_not_depend_on_the_size_of_blocks(dtype, block_size, draws):
    checkpoint = RandomCheckpoint(SHAPES["mistral"])
    tokens = prompt(2, 150)
    exact = last_logits(load(checkpoint), tokens, 150, draws)

    runner = load(checkpoint, dtype, block_size=block_size)
    with torch.inference_mode():
        runner.arena.blocks.fill_(torch.nan)
    found = last_logits(runner, tokens, 67, draws)

    assert error(found, exact) < (1e-4 if dtype == "float32" else 0.03)


@pytest.mark.parametrize("block_size", [16, 62], ids=["kernels", "torch"])
def test_rows_with_released_blocks_read_nothing_else(block_size, draws):
    """Memory that nothing was written to is NaN, also in the last block, the only one that a window may have."""
    checkpoint = RandomCheckpoint(SHAPES["gemma 3"])
    runner, sequences = load(checkpoint, block_size=block_size), []
    with torch.inference_mode():
        runner.arena.blocks.fill_(torch.nan)
        for first, length in ((1, 71), (20, 181)):
            tokens, table = prompt(first, length), range(first, first + runner.layout.blocks_for(length))
            windows = window_tables.of_row(runner, table)
            runner.logits((Row(tokens[:-1], 0, table, draws, windows=windows),))
            windows = window_tables.of_row(runner, table, length - 1)
            sequences.append((tokens, Row(tokens[-1:], length - 1, table, draws, windows=windows)))
        together = runner.logits(tuple(row for _, row in sequences))
    for (tokens, _), found in zip(sequences, together, strict=True):
        assert error(found, last_logits(load(checkpoint), tokens, len(tokens), draws)) < 1e-4


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        *(("auto", name) for name in ("llama 3", "mistral", "biases", "qwen 2, windows", "qwen 3", "odd vocabulary")),
        *(("auto", name) for name in ("gemma 3", "olmo 2", "gpt-oss")),
        ("BFloat16", "llama 3"),
    ],
)
def test_formats_stay_close_to_float32(dtype, name, draws):
    """Formats that `auto` picks round inputs of linear layers to bfloat16 at worst."""
    checkpoint = RandomCheckpoint(SHAPES[name])
    tokens, runner = prompt(1, 90), load(checkpoint, dtype)
    exact = last_logits(load(checkpoint), tokens, 90, draws)

    assert dtype == "auto" or runner.layout.dtype == "bfloat16"
    for chunk, singles in ((90, 0), (67, 0), (70, 20)) if dtype == "auto" else ((90, 0),):
        found = last_logits(runner, tokens, chunk, draws, singles)
        assert error(found, exact) < (0.04 if dtype == "auto" else 0.06)


@pytest.mark.parametrize("vocab_size", [320, 333])
def test_a_vocabulary_of_any_size_is_computed_from_its_codes(vocab_size, draws):
    sizes = llama(vocab_size=vocab_size, tie_word_embeddings=True)
    checkpoint = RandomCheckpoint(sizes, kinds=lambda name: "Q8_0" if "embed_tokens" in name else None)
    tokens = list(range(vocab_size - 60, vocab_size))
    runner = load(checkpoint, "auto", instructions=PROCESSORS["codes"])

    found = last_logits(runner, tokens, 60, draws)

    assert found.shape == (vocab_size,)
    assert found.is_contiguous()
    torch.testing.assert_close(found, last_logits(load(checkpoint), tokens, 60, draws), atol=2e-4, rtol=2e-4)


def test_revision_tells_formats_weights_and_numerics_apart(monkeypatch):
    checkpoint = RandomCheckpoint(SHAPES["llama 3"])
    revisions = [load(checkpoint, dtype).kv_revision for dtype in ("float32", "bfloat16", "float16")]
    assert load(checkpoint).kv_revision == revisions[0]
    in_e4m3 = load(checkpoint, kv_dtype="FP8")
    assert 4 * in_e4m3.layout.block_bytes == load(checkpoint).layout.block_bytes
    assert str(in_e4m3.layout) != str(load(checkpoint).layout)  # refused by `Hello`
    monkeypatch.setattr(runners, "NUMERICS", runners.NUMERICS + 1)
    assert len({*revisions, in_e4m3.kv_revision, load(checkpoint).kv_revision}) == 5


def test_one_set_of_factors_of_longrope_holds_for_all_sequences_and_is_part_of_the_revision():
    """A prefix is shared by sequences of any length: the longest one that is served decides."""
    config = FAMILIES["phi 4 mini"]
    chosen = [config.serving(length).rope_scaling["factors"] for length in (1024, 1025)]
    assert chosen == [config.rope_scaling["short_factor"], config.rope_scaling["long_factor"]]
    short, same, long = (load(RandomCheckpoint(config), max_length=length).kv_revision for length in (512, 1024, 2048))
    assert short == same != long


def test_copies_come_before_computing():
    runner = load(RandomCheckpoint(SHAPES["llama 3"]))
    runner.arena.block(4)[:4] = b"abcd"

    assert runner.step(Batch((), copies=((4, 9),))) == ()
    assert bytes(runner.arena.block(9)[:4]) == b"abcd"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [({"kv_cache_bytes": 1 << 19}, TooLittleMemory, "give at least"), ({"dtype": "int3"}, ValueError, "float32")],
)
def test_what_cannot_be_loaded_is_refused_with_what_can(given, error, message):
    with pytest.raises(error, match=message):
        load(RandomCheckpoint(SHAPES["llama 3"]), **given)


def test_processor_with_hidden_tiles_is_kept_from_onednn(monkeypatch):
    hidden = processor.Processor(avx512=True, bf16=True, amx=True, tiles_described=False)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)

    processor.guard_onednn(hidden)

    assert processor.os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_FP16"
