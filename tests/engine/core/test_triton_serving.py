"""Tiny models by Triton's kernels, in the interpreter, served by a prefill and a decode core: greedy output is that of
transformers after a hand-off of their KV."""

import lora_folders
import torch
from interpreted_models import MODELS, load, prompts

NEW_TOKENS = 4
LIMITS = {"max_length": 256, "max_running": 8, "max_waiting": 8, "chunk": 32}


def runner(checkpoint, block_size=16):
    """No block holds zeros by chance: whatever is read must have come."""
    made = load(checkpoint, block_size=block_size)
    with torch.inference_mode():
        made.arena.blocks.fill_(3.0)
    return made


def test_disaggregated(world, oracle_of):
    """From and to arenas that the link does not reach, with copies that are late."""
    checkpoint = lora_folders.RandomCheckpoint(MODELS["qwen 3"])
    prefill, decode = (
        world.worker(role, runner=runner(checkpoint, block_size=64), staged=(12, 3, 2.0), **LIMITS) for role in "pd"
    )
    given = prompts(checkpoint.config.vocab_size, (5, 67))
    for index, prompt in enumerate(given):
        wanted = world.sequence(prompt, max_tokens=NEW_TOKENS, temperature=0.0, stop_token_ids=())
        world.hand_off(prefill, decode, wanted, room=index + 1, id=str(index))
    while not all(decode.finished(id=str(index)) for index in range(len(given))):
        world.run(1)
        assert not decode.failures()
    assert len(decode.reports()) == len(given)
    assert not any(prefill.items(str(index)) for index in range(len(given)))
    oracle = oracle_of(checkpoint)
    for index, prompt in enumerate(given):
        output = decode.tokens(str(index))
        assert len(output) == NEW_TOKENS
        oracle.check(prompt, output)
