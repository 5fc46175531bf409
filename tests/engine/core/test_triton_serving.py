"""Tiny models by Triton's kernels, in the interpreter, served by a prefill and a decode core: greedy output is that of
transformers after a hand-off of their KV."""

import lora_folders
import pytest
import torch
from interpreted_models import MODELS, load, prompts

from legato_engine.runner.runner import Runner

NEW_TOKENS = 4
SAMPLED = {"temperature": 0.9, "top_p": 0.8, "logprobs": 2}
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


def logprobs(items):
    return [each.logprob for item in items for one in item.logprobs for each in (one, *one.top)]


class OneByOne(Runner):
    """Computes a step at a time."""

    ahead = None


class Ahead(Runner):
    """Counts rows that are launched before their token is known."""

    unknown = 0

    def launch(self, batch):
        self.unknown += sum(row.tokens[0] < 0 for row in batch.rows)
        return super().launch(batch)


def test_steps_ahead_give_what_steps_one_by_one_give(world):
    """Tokens and log probabilities, drawn and best ones, of sequences that come and go at different times."""
    checkpoint = lora_folders.RandomCheckpoint(MODELS["qwen 3"])
    workers = []
    for kind in (Ahead, OneByOne):
        made = runner(checkpoint)
        made.__class__ = kind
        workers.append(world.worker(kind.__name__, runner=made, link=False, **LIMITS))
    given = prompts(checkpoint.config.vocab_size, (5, 40, 9))
    for index, prompt in enumerate(given):
        params = {"max_tokens": 3 + 2 * index, "seed": index, "stop_token_ids": ()}
        params |= SAMPLED if index % 2 else {"temperature": 0.0}
        for worker in workers:
            world.generate(worker, prompt, id=str(index), turns=0, **params)
        world.run(3)
    world.run(40)

    for index in range(len(given)):
        first, second = (worker.items(str(index)) for worker in workers)
        assert sum(len(item.token_ids) for item in first) == 3 + 2 * index
        assert [item.token_ids for item in first] == [item.token_ids for item in second]
        assert logprobs(first) == pytest.approx(logprobs(second), abs=1e-4)  # batches were others
    assert workers[0].runner.unknown > 6
