"""Greedy float32 output of tiny models, served by real cores and schedulers, is that of transformers: after a hand-off,
and from the prefix cache.

The real model, and other ways to compute, are in test_oracle.
"""

import time
from dataclasses import replace

import interpreted_models
import lora_folders
import msgspec
import pytest
import torch
from tiny_families import FAMILIES
from tiny_models import PROCESSORS, llama

from legato_engine.models.architectures import ARCHITECTURES
from legato_engine.runner.plan import RunnerOptions
from legato_engine.runner.runner import Runner
from legato_engine.transfer import ucx
from legato_engine.weights.quantization import rounding
from legato_protocol.wire.packed_tokens import pack_tokens

CONFIG = replace(interpreted_models.LLAMA, max_length=1024)
CHECKPOINTS = {
    "Gemma 3": lora_folders.RandomCheckpoint(FAMILIES["gemma 3"]),  # layers with a window and without
    "FP8": rounding.rounded(lora_folders.RandomCheckpoint(CONFIG), "FP8"),
    "experts": lora_folders.RandomCheckpoint(
        FAMILIES["qwen 3 moe"], kinds=lambda name: None if ".gate." in name else "Q4_1"
    ),
}
FROM_CODES = {"dtype": "auto", "instructions": PROCESSORS["codes"]}
LENGTHS = (5, 1, 12, 3, 33, 64, 17, 9, 2, 40, 21, 31, 8, 130, 277, 6)  # of 16 prompts
NEW_TOKENS = 32
PATIENCE = 250.0  # seconds; only a hang reaches it
LIMITS = {"max_running": 16, "max_waiting": 16}
GREEDY = {"max_tokens": NEW_TOKENS, "temperature": 0.0, "stop_token_ids": ()}


def load(checkpoint, **options):
    """A worker's model and arena."""
    given = {"block_size": 16, "kv_cache_bytes": 4 << 20, "dtype": "float32", "threads": 1}
    made = Runner.load(checkpoint, RunnerOptions(**given | options))
    forget(made)
    return made


def forget(runner):
    """No block holds what was computed before, or zeros by chance: whatever is read must have come."""
    with torch.inference_mode():
        runner.arena.blocks.fill_(3.0)


@pytest.fixture
def serve(world):
    """Runs all workers until one has all tokens of some requests; these, by request."""

    def serve(worker, ids):
        give_up = time.monotonic() + PATIENCE
        while not all(worker.finished(id=id) for id in ids):
            assert time.monotonic() < give_up, "it hangs"
            world.run(1)
            assert not worker.failures()
        return {id: worker.tokens(id) for id in ids}

    return serve


@pytest.mark.parametrize(
    ("weights", "options", "lengths"),
    [("Gemma 3", {}, LENGTHS), ("FP8", {"kv_dtype": "FP8"}, LENGTHS), ("experts", FROM_CODES, LENGTHS[:6])],
    ids=["Gemma 3", "FP8 weights and KV", "experts in 4 bits"],
)
def test_disaggregated_then_from_the_prefix_cache_and_migrated(
    world, serve, oracle_of, request, weights, options, lengths
):
    """Every KV block goes from one core to the other over UCX, as between two processes."""
    checkpoint = CHECKPOINTS[weights]
    workers, oracle = [], oracle_of(checkpoint, "kv_dtype" in options)
    for name in ("p", "d"):
        made = load(checkpoint, max_length=1024, **options)
        link = ucx.open("TCP", "127.0.0.1", made.arena.address, made.arena.nbytes)
        request.addfinalizer(link.close)
        workers.append(world.worker(name, runner=made, link=link, max_length=1024, chunk=128, **LIMITS))
    prefill, decode = workers
    prompts = dict(enumerate(interpreted_models.prompts(CONFIG.vocab_size, lengths)))
    for index, prompt in prompts.items():
        world.hand_off(prefill, decode, world.sequence(prompt, **GREEDY), room=index + 1, id=str(index))
    outputs = serve(decode, [str(index) for index in prompts])
    assert {report.transport for report in decode.reports()} == {"ucx:tcp"}
    assert {report.id for report in decode.reports()} == set(outputs)
    assert not any(prefill.items(id) for id in outputs)

    for index, prompt in prompts.items():
        world.generate(decode, prompt, id=f"again-{index}", turns=0, **GREEDY)
    outputs |= serve(decode, [f"again-{index}" for index in prompts])
    for id, output in outputs.items():
        prompt = prompts[int(id.removeprefix("again-"))]
        assert len(output) == NEW_TOKENS
        oracle.check(prompt, output)
        if id.startswith("again-"):
            assert decode.items(id)[0].cached_tokens == (len(prompt) - 1) // 16 * 16

    moving = prompts[4]
    world.generate(decode, moving, id="moving", turns=0, **GREEDY)
    give_up = time.monotonic() + PATIENCE
    while len(sent := decode.tokens("moving")) < 5:
        assert time.monotonic() < give_up, "it hangs"
        world.run(1)
    known = msgspec.structs.replace(world.sequence(moving, **GREEDY), token_ids=pack_tokens([*moving, *sent]))
    world.migrate(decode, prefill, known, id="moving")
    while not prefill.finished("moving", 2):
        assert time.monotonic() < give_up, "it hangs"
        world.run(1)
    assert {report.transport for report in prefill.reports()} == {"ucx:tcp"}
    output = [*sent, *prefill.tokens("moving", 2)]
    assert len(output) == NEW_TOKENS
    oracle.check(moving, output)


FURTHER = ("MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
EVERY = {"llama": llama(), **{name: llama(architecture=name, sliding_window=48) for name in FURTHER}, **FAMILIES}


def test_every_architecture_has_a_tiny_model():
    assert {config.architecture for config in EVERY.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", EVERY)
def test_a_sequence_that_moves_twice_has_the_tokens_of_one_that_stays(world, serve, sequences, name):
    """From prefill to decode, and in mid-decode to a third worker. Received blocks are cached like computed ones."""
    made = [load(lora_folders.RandomCheckpoint(EVERY[name]), max_length=1024) for _ in range(3)]
    (tokens,) = interpreted_models.prompts(CONFIG.vocab_size, (70,))
    run = sequences(made[0], [tokens], NEW_TOKENS)
    run.prefill(0, 4096)
    run.decode([0])
    forget(made[0])
    limits = LIMITS | {"max_length": 1024, "chunk": 32}
    prefill, decode, last = (world.worker(name, runner=each, **limits) for name, each in zip("pdl", made, strict=True))

    world.hand_off(prefill, decode, world.sequence(tokens, **GREEDY), turns=20)
    sent = decode.tokens()
    assert 0 < len(sent) < NEW_TOKENS
    known = msgspec.structs.replace(world.sequence(tokens, **GREEDY), token_ids=pack_tokens([*tokens, *sent]))
    world.migrate(decode, last, known)
    world.run(40)
    world.generate(decode, tokens, id="again", turns=0, **GREEDY)

    assert serve(decode, ["again"])["again"] == [*sent, *last.tokens(attempt=2)] == run.outputs[0]
    assert decode.items("again")[0].cached_tokens == 64
    assert min(report.blocks for worker in (decode, last) for report in worker.reports()) >= 5
    world.check_done()


def test_layers_with_a_window_after_preemptions(world, serve, oracle_of):
    """In 36 blocks, which all prompts fit into, but not their answers."""
    runner = load(CHECKPOINTS["Gemma 3"], max_length=400, kv_cache_bytes=36 * 8 << 10, chunk_tokens=64)
    assert (runner.num_blocks, runner.layout.windows) == (36, (48,))
    limits = LIMITS | {"max_length": 400, "growth_tokens": 0}
    worker = world.worker("u", runner=runner, link=False, chunk=64, **limits)
    prompts = dict(enumerate(interpreted_models.prompts(CONFIG.vocab_size, (97, 61, 40, 30, 20))))
    for index, prompt in prompts.items():
        world.generate(worker, prompt, id=str(index), turns=0, **GREEDY)
    oracle = oracle_of(CHECKPOINTS["Gemma 3"])
    for id, output in serve(worker, [str(index) for index in prompts]).items():
        assert len(output) == NEW_TOKENS
        oracle.check(prompts[int(id)], output)
    assert worker.scheduler.load().preemptions > 0
