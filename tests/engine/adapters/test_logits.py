"""Rows with adapters compute what models with these adapters merged into their weights compute, alone and together."""

from dataclasses import replace

import emulated_kernels
import lora_folders
import pytest
import torch
from lora_folders import RandomCheckpoint

from legato_engine import processor
from legato_engine.adapters.folder import open_adapter
from legato_engine.backends.cpu import linear_bf16, numerics
from legato_engine.models.config import ModelConfig
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Row
from legato_engine.weights.expected import projections

TINY = ModelConfig(
    architecture="LlamaForCausalLM", layers=2, hidden_size=96, heads=6, kv_heads=2, head_dim=32,
    intermediate_size=160, vocab_size=320, max_length=1024, rope_theta=10000.0, rope_scaling=None,
    rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=None, attention_bias=False, mlp_bias=False,
)  # fmt: skip
SHAPES = {
    "kernels": TINY,
    "torch": replace(TINY, hidden_size=63, head_dim=20, heads=3, kv_heads=1, intermediate_size=100),
    "biases": replace(TINY, attention_bias=True, mlp_bias=True),
    "qwen 3": replace(TINY, architecture="Qwen3ForCausalLM", head_dim=64),
}
ADAPTERS = {
    "all": {"rank": 4},
    "attention": {"rank": 8, "targets": ("q_proj", "v_proj")},
    "outputs": {"rank": 3, "targets": ("o_proj", "down_proj")},
    "stabilized": {"rank": 16, "lora_alpha": 8, "use_rslora": True},
}
SCALES = {"all": 2.0, "attention": 2.0, "outputs": 2.0, "stabilized": 2.0}


def load(checkpoint, dtype="float32"):
    return Runner.load(checkpoint, block_size=16, kv_cache_bytes=16 << 20, dtype=dtype, threads=2, max_length=1024)


def prompt(seed, length):
    return torch.randint(0, 300, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def logits(runner, rows):
    with torch.inference_mode():
        return runner.logits(tuple(rows))


def row(runner, tokens, first, draws, adapter=None, start=0):
    blocks = list(range(first, first + runner.layout.blocks_for(start + len(tokens))))
    return Row(tokens, start, blocks, draws, adapter=adapter)


@pytest.fixture
def draws(greedy_draw):
    return (greedy_draw,)


@pytest.fixture
def adapters(tmp_path):
    def of(runner, config):
        found = {}
        for seed, (name, asked) in enumerate(ADAPTERS.items()):
            folder = lora_folders.write(tmp_path / name, config, seed=seed, **asked)
            found[name] = runner.adapter(open_adapter(folder, projections(config), 64).read())
        return found

    return of


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("length", [1, 100])
def test_a_row_is_that_of_merged_weights_as_transformers_computes_them(
    shape, length, draws, adapters, tmp_path, huggingface
):
    config = SHAPES[shape]
    runner = load(RandomCheckpoint(config))
    tokens = prompt(length, length)
    for name, adapter in adapters(runner, config).items():
        checkpoint = lora_folders.merged(config, tmp_path / name, SCALES[name])
        with torch.inference_mode():
            expected = huggingface(checkpoint, config)(input_ids=torch.tensor([tokens])).logits[0, -1]
        (found,) = logits(runner, [row(runner, tokens, 1, draws, adapter)])
        torch.testing.assert_close(found, expected, atol=5e-4, rtol=5e-4)


@pytest.mark.parametrize("shape", ["kernels", "torch"])
def test_four_adapters_and_the_base_in_one_batch_of_16_equal_each_alone(shape, draws, adapters):
    """Prompts and sequences that decode, of every adapter and of none, in one step."""
    config = SHAPES[shape]
    runner = load(RandomCheckpoint(config))
    chosen = [None, *adapters(runner, config).values()]
    rows, alone = [], []
    for index in range(16):
        tokens, adapter = prompt(index, 40 + 7 * index), chosen[index % 5]
        first = 1 + 12 * index
        (expected,) = logits(runner, [row(runner, tokens, 800, draws, adapter)])
        alone.append(expected)
        if index % 2:  # it decodes: all but its last token is computed before
            logits(runner, [row(runner, tokens[:-1], first, draws, adapter)])
            blocks = list(range(first, first + runner.layout.blocks_for(len(tokens))))
            rows.append(Row(tokens[-1:], len(tokens) - 1, blocks, draws, adapter=adapter))
        else:
            rows.append(row(runner, tokens, first, draws, adapter))

    found = logits(runner, rows)

    torch.testing.assert_close(found, torch.stack(alone), atol=5e-4, rtol=5e-4)
    base = logits(runner, [Row(each.tokens, each.start, each.blocks, draws) for each in rows[1:5]])
    assert ((found[1:5] - base).norm(dim=1) > 1).all(), "adapters that change nothing show nothing"


def test_a_quantized_base_is_left_as_it_is(smollm2, smollm2_float32, draws, tmp_path):
    """Few rows are computed from 4-bit codes by a recorded program, more in another way; adapters are float32."""
    config = smollm2.config
    auto = Runner.load(smollm2, block_size=16, kv_cache_bytes=64 << 20, dtype="auto", threads=1, max_length=1024)
    folder = open_adapter(lora_folders.write(tmp_path / "lora", config, seed=5, rank=8), projections(config), 64)
    pairs = {name: pair._replace(b=pair.b * 0.1) for name, pair in folder.read().items()}
    ours, theirs = auto.adapter(pairs), smollm2_float32.adapter(pairs)
    for length in (1, 9, 200):
        tokens = prompt(length, length)
        for adapter, exact in ((ours, theirs), (None, None)):
            (found,) = logits(auto, [row(auto, tokens, 1, draws, adapter)])
            (expected,) = logits(smollm2_float32, [row(smollm2_float32, tokens, 1, draws, exact)])
            assert (found - expected).norm() < 0.08 * expected.norm()
        (base,) = logits(auto, [row(auto, tokens, 1, draws)])
        assert torch.equal(found, base), "a step with adapters before it leaves no trace"


@pytest.mark.parametrize("kernels", ["int8", "int8-avx2", "tiles"])
def test_other_numerics_stay_close_to_float32(kernels, draws, adapters, tmp_path, monkeypatch):
    """Formats that `auto` picks round inputs of linear layers and KV, to bfloat16 at worst."""
    here = processor.detect()
    if (kernels == "int8" and not here.vnni) or (kernels == "int8-avx2" and not here.avx2):
        pytest.skip(f"this processor has no instructions for {kernels}")
    if kernels == "tiles" and not here.amx:
        attention, linear = emulated_kernels.load("attention.numba_bf16", "linear.numba_tiles")
        monkeypatch.setattr(numerics, "numba_bf16", attention)
        monkeypatch.setattr(linear_bf16, "kernels", linear)
    runner = Runner.load(
        RandomCheckpoint(TINY), block_size=16, kv_cache_bytes=16 << 20, dtype="auto", threads=2, max_length=1024,
        instructions=replace(here, amx=kernels == "tiles", vnni=kernels == "int8", avx2=kernels == "int8-avx2"),
    )  # fmt: skip
    for name, adapter in adapters(runner, TINY).items():
        exact = load(lora_folders.merged(TINY, tmp_path / name, SCALES[name]))
        for length in (1, 20, 300):
            tokens = prompt(length, length)
            (found,) = logits(runner, [row(runner, tokens, 1, draws, adapter)])
            (expected,) = logits(exact, [row(exact, tokens, 1, draws)])
            assert (found - expected).norm() < 0.06 * expected.norm()
