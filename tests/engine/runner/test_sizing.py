"""Memory is worked out before anything is read, and a refusal says what would fit."""

import pytest
import shallow_model
from huggingface_oracle import smollm2_path

from legato_engine.errors import TooLittleMemory
from legato_engine.kvcache.layout import KVLayout
from legato_engine.processor import Processor
from legato_engine.runner import formats, sizing
from legato_engine.runner.runner import Runner
from legato_engine.runner.sizing import Needs
from legato_engine.weights.opening import open_weights

MIB = 1 << 20
NEEDS = Needs(weights=1000 * MIB, workspace=500 * MIB)
LAYOUT = KVLayout(layers=8, kv_heads=4, block_size=16, head_dim=128, dtype="float32")  # a block is 0.5 MiB
PROCESSORS = {
    "tiles": Processor(avx512=True, bf16=True, amx=True, tiles_described=True),
    "codes": Processor(avx512=True, bf16=False, amx=False, tiles_described=True),
    "int8": Processor(avx512=True, bf16=False, amx=False, tiles_described=True, vnni=True),
    "int8-avx2": Processor(avx512=False, bf16=False, amx=False, tiles_described=True, avx2=True),
}


@pytest.fixture(scope="module")
def shallow(tmp_path_factory):
    """The real model's shapes and types."""
    path = tmp_path_factory.mktemp("model") / "shallow.gguf"
    return open_weights(shallow_model.write(smollm2_path(), path, layers=6))


@pytest.mark.parametrize(
    ("dtype", "kernels"),
    [
        ("auto", "codes"),
        ("auto", "int8"),
        ("auto", "int8-avx2"),
        ("auto", "tiles"),
        ("float32", "float32"),
        ("bfloat16", "torch"),
    ],
)
def test_weights_take_what_was_worked_out(shallow, dtype, kernels):
    instructions = PROCESSORS.get(kernels, PROCESSORS["codes"])
    chosen = formats.choose(dtype, instructions, None, shallow.config, 16)
    assert chosen.kernels == kernels

    found = sizing.needs(shallow, chosen, 512, 64)

    loaded = Runner.load(
        shallow, block_size=16, kv_cache_bytes=MIB, dtype=dtype, max_length=16, instructions=instructions
    )
    assert found.weights == pytest.approx(loaded.weight_bytes, rel=0.01)


def test_larger_steps_need_a_larger_workspace(smollm2):
    chosen = formats.choose("float32", PROCESSORS["codes"], None, smollm2.config, 16)
    few, many = (sizing.needs(smollm2, chosen, tokens, 64).workspace for tokens in (512, 4096))
    assert many - few == 4 * 3584 * (6 * 576 + 24 * 64 + 3 * 1536)
    assert sizing.needs(smollm2, chosen, 512, 65).workspace - few > 4 * smollm2.config.vocab_size


@pytest.mark.parametrize(("available", "fits"), [(1564 * MIB, True), (1564 * MIB - 1, False)])
def test_what_is_checked_is_the_sum(available, fits):
    if fits:
        sizing.check(NEEDS, LAYOUT, 64 * MIB, available, 1024)
        return
    with pytest.raises(TooLittleMemory) as refused:
        sizing.check(NEEDS, LAYOUT, 64 * MIB, available, 1024)
    assert str(refused.value) == (
        "weights take 1,000 MiB, workspace about 500 MiB, the KV cache 64 MiB; 1,564 MiB are available: "
        "give a kvCacheMemory of at most 63Mi"
    )


@pytest.mark.parametrize(
    ("available", "advice"),
    [
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
    with pytest.raises(TooLittleMemory) as refused:
        sizing.check(NEEDS, LAYOUT, 64 * MIB, available * MIB, 1024)
    assert str(refused.value).endswith(advice)


def test_auto_takes_what_is_free_less_the_reserve():
    assert sizing.kv_bytes(NEEDS, LAYOUT, 4096 * MIB, 1024, 4096) == (4096 - 1000 - 500 - 512) * MIB
    large = Needs(20_000 * MIB, 500 * MIB)
    assert sizing.kv_bytes(large, LAYOUT, 40_000 * MIB, 8192, 4096) == (40_000 - 20_000 - 500 - 4000) * MIB


def test_auto_takes_no_more_than_all_sequences_can_use():
    assert sizing.kv_bytes(NEEDS, LAYOUT, 1 << 40, 1024, 3) == 3 * 32 * MIB


def test_auto_refuses_what_holds_no_longest_sequence():
    assert sizing.kv_bytes(NEEDS, LAYOUT, (1500 + 512 + 32) * MIB, 1024, 64) == 32 * MIB
    with pytest.raises(TooLittleMemory, match=r"kvCacheMemory is Auto.*a maxLength of at most 992"):
        sizing.kv_bytes(NEEDS, LAYOUT, (1500 + 512 + 32) * MIB - 1, 1024, 64)


def test_a_runner_is_refused_before_any_weight_is_read(smollm2):
    class Unreadable:
        config, packed_bits = smollm2.config, smollm2.packed_bits

    with pytest.raises(TooLittleMemory, match="100 MiB are available"):
        Runner.load(
            Unreadable(), block_size=16, kv_cache_bytes=MIB, dtype="float32", max_length=16, available=100 * MIB
        )


def test_a_runner_takes_what_is_left(shallow):
    runner = Runner.load(
        shallow, block_size=16, kv_cache_bytes=None, dtype="float32", max_length=64, available=4 << 30, max_batch=5
    )
    assert runner.num_blocks == 5 * 4
