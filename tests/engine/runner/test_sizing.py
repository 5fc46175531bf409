"""Memory is worked out before anything is read, and a refusal says what would fit."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_files as files
from gguf import GGMLQuantizationType as Type
from tiny_families import FAMILIES
from tiny_models import PROCESSORS, RandomCheckpoint

from legato_engine.errors import TooLittleMemory
from legato_engine.kvcache.layout import KVLayout
from legato_engine.runner import formats, sizing
from legato_engine.runner.arena import count_blocks
from legato_engine.runner.plan import RunnerOptions
from legato_engine.runner.runner import Runner
from legato_engine.runner.sizing import AskedSizes, ChosenSizes, Memory, Needs
from legato_engine.weights.opening import open_weights

ROOT = Path(__file__).parents[3]
MIB = 1 << 20
NEEDS = Needs(weights=1000 * MIB, workspace=500 * MIB)
LAYOUT = KVLayout(layers=8, kv_heads=4, block_size=16, head_dim=128, dtype="float32")  # a block is 0.5 MiB


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Mixes types as files do: the embedding has more bits."""
    name, path = "token_embd.weight", tmp_path_factory.mktemp("model") / "tiny.gguf"
    tensors = files.tiny(Type.Q4_1) | {name: files.tiny(Type.Q8_0)[name]}
    return open_weights(files.write_gguf(path, tensors))


@pytest.mark.parametrize(
    ("dtype", "name"),
    [*(("auto", name) for name in ("codes", "int8", "int8-avx2", "tiles")), ("float32", "float32"),
     ("bfloat16", "bfloat16")],
)  # fmt: skip
def test_weights_take_what_was_worked_out(checkpoint, dtype, name):
    instructions = PROCESSORS.get(name, PROCESSORS["codes"])
    chosen = formats.choose(dtype, instructions, None, checkpoint.config, 16)
    assert chosen.name == name

    found = sizing.needs(checkpoint, chosen, 512, 64)

    loaded = Runner.load(
        checkpoint,
        RunnerOptions(block_size=16, kv_cache_bytes=MIB, dtype=dtype, max_length=16, instructions=instructions),
    )
    assert found.weights == pytest.approx(loaded.weight_bytes, rel=0.01)


@pytest.mark.parametrize(("backend", "ranks", "added"), [("cuda", 2, 0), ("cuda", 4, 4 * 256), ("cpu", 4, 0)])
def test_more_than_two_ranks_on_gpus_need_memory_for_nccl(checkpoint, monkeypatch, backend, ranks, added):
    """The size of its buffers is assumed."""
    chosen = replace(formats.choose("float32", PROCESSORS["codes"], None, checkpoint.config, 16), backend=backend)
    with_buffers = sizing.needs(checkpoint, chosen, 512, 64, ranks=ranks).workspace
    monkeypatch.setattr(sizing, "NCCL", 0)
    assert with_buffers - sizing.needs(checkpoint, chosen, 512, 64, ranks=ranks).workspace == added * MIB


@pytest.mark.parametrize(
    ("available", "advice"),
    [
        (1564 - 1, "give a kvCacheMemory of at most 63Mi"),
        (1532, "give a kvCacheMemory of at most 32Mi"),
        (
            1510,
            "it takes at least 22 MiB more memory for sequences of 1024 tokens, "
            "or a maxLength of at most 320 with a kvCacheMemory of at most 10Mi",
        ),
        (
            1200,
            "there is no room for a KV cache: it takes at least 332 MiB more memory for sequences of 1024 tokens, "
            "or a smaller model",
        ),
    ],
)
def test_a_refusal_says_what_would_fit(available, advice):
    sizing.check(NEEDS, LAYOUT, 64 * MIB, 1564 * MIB, 1024)
    with pytest.raises(TooLittleMemory) as refused:
        sizing.check(NEEDS, LAYOUT, 64 * MIB, available * MIB, 1024)
    parts = "weights take 1,000 MiB, workspace about 500 MiB, the KV cache 64 MiB"
    assert str(refused.value) == f"{parts}; {available:,} MiB are available: {advice}"


def test_auto_takes_what_is_free_less_the_reserve():
    assert sizing.kv_bytes(NEEDS, LAYOUT, Memory(4096 * MIB), 1024) == (4096 - 1000 - 500 - 512) * MIB
    large = Needs(20_000 * MIB, 500 * MIB)
    assert sizing.kv_bytes(large, LAYOUT, Memory(40_000 * MIB), 8192) == (40_000 - 20_000 - 500 - 4000) * MIB
    least = (1500 + 512 + 32) * MIB
    assert sizing.kv_bytes(NEEDS, LAYOUT, Memory(least), 1024) == 32 * MIB
    with pytest.raises(TooLittleMemory, match=r"kvCacheMemory is Auto.*a maxLength of at most 992"):
        sizing.kv_bytes(NEEDS, LAYOUT, Memory(least - 1), 1024)


@pytest.mark.parametrize(
    ("available", "least", "size"),
    [(8000, 1024, 2000), (8000, 100_000, 3125), (2400, 1024, 388)],
    ids=["a quarter", "the longest sequence", "what is left"],
)
def test_auto_leaves_most_of_shared_memory_to_other_programs(available, least, size):
    assert sizing.kv_bytes(NEEDS, LAYOUT, Memory(available * MIB, shared=True), least) == size * MIB


def _needs(running):
    return Needs(1000 * MIB, (500 + running) * MIB)


@pytest.mark.parametrize(
    ("asked", "available", "chosen"),
    [
        (AskedSizes(None, None, None), 100_000, ChosenSizes(87_476 * MIB, 8192, 1024)),
        (AskedSizes(None, None, None), 12_000, ChosenSizes(8788 * MIB, 8192, 512)),
        (AskedSizes(None, None, None), 2092, ChosenSizes(16 * MIB, 512, 64)),
        (AskedSizes(None, 4096, 7), 12_000, ChosenSizes(9293 * MIB, 4096, 7)),
        (AskedSizes(64 * MIB, None, None), 100_000, ChosenSizes(64 * MIB, 2048, 64)),
        (AskedSizes(64 * MIB, 64, None), 100_000, ChosenSizes(64 * MIB, 64, 64)),
        (AskedSizes(4096 * MIB, None, None), 100_000, ChosenSizes(4096 * MIB, 8192, 256)),
        (AskedSizes(4096 * MIB, None, None), 5800, ChosenSizes(4096 * MIB, 8192, 192)),
        (AskedSizes(4096 * MIB, None, None), None, ChosenSizes(4096 * MIB, 8192, 256)),
    ],
    ids=[
        "at most 1,024 run", "running ones take workspace", "at least 64 run, and the cache bounds the length",
        "as asked", "a small cache bounds the length", "short sequences", "a cache of 256 expected sequences",
        "too little workspace for these", "nothing is checked",
    ],
)  # fmt: skip
def test_auto_follows_memory(asked, available, chosen):
    memory = None if available is None else Memory(available * MIB)
    assert sizing.choose(_needs, LAYOUT, 8192, asked, memory) == chosen


@pytest.mark.parametrize(
    ("running", "available", "advice"),
    [
        (2000, 3000, ", or a maxRunning of at most 960$"),
        (64, 1600, "a smaller model$"),
        (2000, 1500, "a smaller model$"),
    ],
)
def test_a_refusal_names_a_number_of_running_sequences_that_would_fit(running, available, advice):
    with pytest.raises(TooLittleMemory, match=advice):
        sizing.choose(_needs, LAYOUT, 8192, AskedSizes(None, None, running), Memory(available * MIB))


def test_tables_of_rotary_angles_are_counted_for_the_longest_sequence():
    """Gemma 3 has two: of layers with a window, and of the others."""
    checkpoint = RandomCheckpoint(FAMILIES["gemma 3"])
    chosen = formats.choose("float32", PROCESSORS["codes"], None, checkpoint.config, 16)
    assert sizing.needs(checkpoint, chosen, 512, 64).angles == 2 * 4 * checkpoint.config.head_dim
    needs = Needs(1000 * MIB, 500 * MIB, angles=64 << 10)
    for length, kv in ((4096, 9300 - 256), (64, 9300 - 4)):
        asked = AskedSizes(None, length, 7)
        assert (
            sizing.choose(lambda _running: needs, LAYOUT, 8192, asked, Memory(12_000 * MIB)).kv_cache_bytes == kv * MIB
        )


def test_layers_with_a_window_take_what_the_benchmarks_say():
    """gpt-oss-20b holds half of the KV, Gemma 3 12B a sixth, and Mistral 7B v0.1, without full attention, a quarter."""
    rows = runpy.run_path(str(ROOT / "benchmarks/engine/kv_bytes.py"))["table"]()
    assert [row.split()[-3] for row in rows] == ["57", "51", "50", "50", "100", "27", "19", "17", "100", "56", "23"]
    assert "\n".join(rows) in (ROOT / "benchmarks/README.md").read_text()


WINDOWED = replace(LAYOUT, layers=4, windows=(256,))  # a block is 0.25 MiB


def test_a_cache_with_windows_holds_longer_sequences():
    """A prompt of 4,096 tokens takes 256 blocks, and 16 + 32 + 1 of the window and a chunk."""
    kv = arena_bytes = (256 + 49) * 256 << 10
    assert WINDOWED.bytes_for(4096, 512) == kv
    assert count_blocks(WINDOWED, arena_bytes, 4096, 512) == 256 + 49
    with pytest.raises(TooLittleMemory, match="a maxLength of at most 4080"):
        count_blocks(WINDOWED, arena_bytes - 1, 4096, 512)
    asked = AskedSizes(kv, None, 7)
    assert sizing.choose(_needs, WINDOWED, 8192, asked, Memory(12_000 * MIB), 512) == ChosenSizes(kv, 4096, 7)
    for blocks in range(1, 400):
        longest = WINDOWED.sizes(512).largest(blocks)
        assert WINDOWED.sizes(512).most(longest) <= blocks < WINDOWED.sizes(512).most(longest + 1)


def test_auto_is_refused_where_no_expected_sequence_fits():
    with pytest.raises(TooLittleMemory, match="for sequences of 512 tokens"):
        sizing.choose(_needs, LAYOUT, 8192, AskedSizes(None, None, None), Memory(2091 * MIB))


def test_a_runner_is_refused_before_any_weight_is_read(smollm2):
    class Unreadable:
        config, packed_bits = smollm2.config, smollm2.packed_bits

    with pytest.raises(TooLittleMemory, match="100 MiB are available"):
        Runner.load(
            Unreadable(),
            RunnerOptions(block_size=16, kv_cache_bytes=MIB, dtype="float32", max_length=16, memory=Memory(100 * MIB)),
        )


def test_a_runner_takes_what_is_left(checkpoint):
    runner = Runner.load(
        checkpoint,
        RunnerOptions(
            block_size=16, kv_cache_bytes=None, dtype="float32", max_length=None, max_batch=None, memory=Memory(1 << 30)
        ),
    )
    assert runner.num_blocks * runner.layout.block_bytes > 150 * MIB
    assert (runner.max_length, runner.max_running) == (checkpoint.config.max_length, 704)
    assert f"704 sequences of at most {checkpoint.config.max_length:,} tokens" in runner.formats


def test_kv_in_host_memory_leaves_the_rest_or_is_refused_with_a_size_that_fits():
    assert sizing.without_host_kv(Memory(300 * MIB, shared=True), 100 * MIB) == Memory(200 * MIB, shared=True)
    with pytest.raises(TooLittleMemory, match=r"hostKVMemory is 301 MiB; 300 MiB .* at most 300Mi"):
        sizing.without_host_kv(Memory(300 * MIB), 301 * MIB)
