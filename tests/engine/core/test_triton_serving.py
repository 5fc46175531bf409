"""Tiny models by Triton's kernels, in the interpreter, served by a prefill and a decode core: greedy output is that of
transformers after a hand-off of their KV."""

import lora_folders
import pytest
import torch
from interpreted_models import MODELS, load, prompts

NEW_TOKENS = 5
LIMITS = {"max_length": 256, "max_running": 8, "max_waiting": 8, "chunk": 32}


def runner(checkpoint):
    """No block holds zeros by chance: whatever is read must have come."""
    made = load(checkpoint)
    with torch.inference_mode():
        made.arena.blocks.fill_(3.0)
    return made


@pytest.mark.parametrize("staged", [None, (12, 3, 2.0)], ids=["direct", "staged"])
@pytest.mark.parametrize("name", ["llama", "qwen 3"])
def test_disaggregated(world, oracle_of, name, staged):
    """Also from and to arenas that the link does not reach, with copies that are late."""
    checkpoint = lora_folders.RandomCheckpoint(MODELS[name])
    prefill, decode = (world.worker(role, runner=runner(checkpoint), staged=staged, **LIMITS) for role in ("p", "d"))
    given = prompts(checkpoint.config.vocab_size, (5, 50, 71))
    for index, prompt in enumerate(given):
        wanted = world.sequence(prompt, max_tokens=NEW_TOKENS, temperature=0.0, stop_token_ids=())
        world.hand_off(prefill, decode, wanted, room=index + 1, id=str(index))
    for _ in range(100):
        world.run(1)
        if all(decode.finished(id=str(index)) for index in range(len(given))):
            break

    assert not decode.failures()
    assert len(decode.reports()) == len(given)
    assert not any(prefill.items(str(index)) for index in range(len(given)))
    oracle = oracle_of(checkpoint)
    for index, prompt in enumerate(given):
        output = decode.tokens(str(index))
        assert len(output) == NEW_TOKENS
        oracle.check(prompt, output)
