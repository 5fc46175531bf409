"""Rows with adapters compute what models with these adapters merged into their weights compute, alone and together."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

import interpreted_models
import lora_folders
import pytest
import torch
import window_tables
from ranks_in_threads import RankThreads
from tiny_families import FAMILIES
from tiny_models import LLAMA, RandomCheckpoint, llama, prompt

from legato_engine.adapters.folder import open_adapter
from legato_engine.backends.cuda.device import Interpreted
from legato_engine.runner.plan import RunnerOptions
from legato_engine.runner.ranks import loading as rank_loading
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Row
from legato_engine.weights.expected import projections
from legato_engine.weights.quantization import rounding

SHAPES = {
    "kernels": LLAMA,
    "torch": llama(hidden_size=63, head_dim=20, heads=3, kv_heads=1, intermediate_size=100),
    "biases": llama(attention_bias=True, mlp_bias=True),
    "qwen 3": llama(architecture="Qwen3ForCausalLM", head_dim=64),
    "phi 3": FAMILIES["phi 3"],  # with fused projections
    "olmo 2": FAMILIES["olmo 2"],  # whose linear layers take the residual stream
    "FP8": interpreted_models.LLAMA,  # on a GPU, from codes
}
ADAPTERS = {
    "all": {"rank": 4},
    "attention": {"rank": 8, "targets": ("q_proj", "v_proj")},
    "outputs": {"rank": 3, "targets": ("o_proj", "down_proj")},
}


def load(checkpoint, dtype="float32", **changes):
    given = {"block_size": 16, "kv_cache_bytes": 16 << 20, "threads": 2, "max_length": 1024} | changes
    return Runner.load(checkpoint, RunnerOptions(dtype=dtype, **given))


def logits(runner, rows):
    with torch.inference_mode():
        return runner.logits(tuple(rows))


def row(runner, tokens, first, draws, adapter=None, start=0):
    blocks = list(range(first, first + runner.layout.blocks_for(start + len(tokens))))
    windows = window_tables.of_row(runner, blocks, start)
    return Row(tokens, start, blocks, draws, adapter=adapter, windows=windows)


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


@pytest.mark.parametrize(
    ("shape", "length", "ranks"),
    [
        ("kernels", 1, 1),
        ("kernels", 100, 1),
        ("torch", 100, 1),
        ("biases", 100, 1),
        ("qwen 3", 1, 1),
        ("phi 3", 100, 1),
        ("FP8", 33, 1),
        ("kernels", 100, 2),
        ("phi 3", 100, 2),
        ("olmo 2", 1, 4),
    ],
)
def test_a_row_is_that_of_merged_weights_as_transformers_computes_them(
    shape, length, ranks, draws, adapters, tmp_path, huggingface, monkeypatch
):
    config = SHAPES[shape]
    base, options = RandomCheckpoint(config), {"threads": 1, "tensor": ranks} if ranks > 1 else {}
    monkeypatch.setattr(rank_loading, "OtherRanks", partial(RankThreads, checkpoint=base))
    if shape == "FP8":
        base, options = rounding.rounded(base, "FP8"), {"gpu": Interpreted(2)}
    runner = load(base, **options)
    tokens = prompt(length, length)
    for name, adapter in adapters(runner, config).items():
        checkpoint = lora_folders.merged(config, tmp_path / name, base=base)
        with torch.inference_mode():
            expected = huggingface(checkpoint, config)(input_ids=torch.tensor([tokens])).logits[0, -1]
        (found,) = logits(runner, [row(runner, tokens, 1, draws, adapter)])
        torch.testing.assert_close(found, expected, atol=5e-4, rtol=5e-4)


@pytest.mark.parametrize("options", [{}, {"gpu": Interpreted(2)}], ids=["CPU", "GPU"])
def test_an_adapter_is_loaded_while_a_step_is_computed(options, draws, adapters, monkeypatch):
    config, began, goes_on = SHAPES["kernels"], Event(), Event()
    runner = load(RandomCheckpoint(config), **options)
    compute, rows = runner._model.logits, [row(runner, prompt(0, 40), 1, draws)]

    def held(step):
        began.set()
        assert goes_on.wait(60)
        return compute(step)

    with ThreadPoolExecutor(1) as thread, monkeypatch.context() as patched:
        patched.setattr(runner._model, "logits", held)
        step = thread.submit(logits, runner, rows)
        assert began.wait(60)
        loaded = adapters(runner, config)
        assert not step.done()
        goes_on.set()
        base = step.result().clone()
    (adapted,) = logits(runner, [row(runner, prompt(0, 40), 1, draws, loaded["all"])])
    assert (adapted - base[0]).norm() > 1


@pytest.mark.parametrize("shape", ["kernels", "torch"])
def test_adapters_and_the_base_in_one_batch_of_16_equal_each_alone(shape, draws, adapters):
    """Prompts and sequences that decode, of every adapter and of none, in one step."""
    config = SHAPES[shape]
    runner = load(RandomCheckpoint(config))
    chosen = [None, *adapters(runner, config).values()]
    rows, alone = [], []
    for index in range(16):
        tokens, adapter = prompt(index, 20 + 5 * index), chosen[index % 4]
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
    base = logits(runner, [Row(each.tokens, each.start, each.blocks, draws) for each in rows[1:4]])
    assert ((found[1:4] - base).norm(dim=1) > 1).all(), "adapters that change nothing show nothing"
