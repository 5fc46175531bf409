"""Tiny models by Triton's kernels, in the interpreter, served by a prefill and a decode core: greedy output is that of
transformers after a hand-off of their KV."""

import lora_folders
import pytest
import torch
from interpreted_models import MODELS, load, prompts

from legato_protocol.stream import Generate

NEW_TOKENS = 4
SAMPLED = {"temperature": 0.9, "top_p": 0.8, "logprobs": 2}
LIMITS = {"max_length": 256, "max_running": 8, "max_waiting": 8, "chunk": 32}


def runner(checkpoint, block_size=16):
    """No block holds zeros by chance: whatever is read must have come."""
    made = load(checkpoint, block_size=block_size)
    with torch.inference_mode():
        made.arena.blocks.fill_(3.0)
    return made


@pytest.mark.parametrize(
    ("name", "block_size", "staged"), [("llama", 16, None), ("qwen 3", 64, (12, 3, 2.0))], ids=["direct", "staged"]
)
def test_disaggregated(world, oracle_of, name, block_size, staged):
    """Also from and to arenas that the link does not reach, with copies that are late."""
    checkpoint = lora_folders.RandomCheckpoint(MODELS[name])
    prefill, decode = (
        world.worker(role, runner=runner(checkpoint, block_size), staged=staged, **LIMITS) for role in ("p", "d")
    )
    given = prompts(checkpoint.config.vocab_size, (5, 67))
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


def logprobs(items):
    told = [one for item in items for one in item.logprobs]
    return [value for one in told for value in (one.logprob, *[top.logprob for top in one.top])]


class OneByOne:
    """The same runner, a step at a time."""

    ahead = None

    def __init__(self, runner):
        self._runner = runner

    def __getattr__(self, name):
        return getattr(self._runner, name)


class Ahead:
    """The same runner; counts rows that are launched before their token is known."""

    def __init__(self, runner):
        self._runner = runner
        self.unknown = 0

    def __getattr__(self, name):
        return getattr(self._runner, name)

    @property
    def ahead(self):
        return self

    def launch(self, batch):
        self.unknown += sum(row.tokens[0] < 0 for row in batch.rows)
        return self._runner.launch(batch)


def test_steps_ahead_give_what_steps_one_by_one_give(world):
    """Tokens and log probabilities, drawn and best ones, of sequences that come and go at different times."""
    checkpoint = lora_folders.RandomCheckpoint(MODELS["qwen 3"])
    ahead = Ahead(runner(checkpoint))
    both = ahead, OneByOne(runner(checkpoint))
    workers = [world.worker(name, runner=made, link=False, **LIMITS) for name, made in zip("ab", both, strict=True)]
    given = prompts(checkpoint.config.vocab_size, (5, 40, 9))
    for index, prompt in enumerate(given):
        params = SAMPLED if index % 2 else {"temperature": 0.0}
        wanted = world.sequence(prompt, max_tokens=3 + 2 * index, seed=index, stop_token_ids=(), **params)
        for worker in workers:
            worker.tell(Generate(str(index), 1, wanted))
        world.run(3)
    world.run(40)

    for index in range(len(given)):
        first, second = (worker.items(str(index)) for worker in workers)
        assert sum(len(item.token_ids) for item in first) == 3 + 2 * index
        assert [item.token_ids for item in first] == [item.token_ids for item in second]
        assert logprobs(first) == pytest.approx(logprobs(second), abs=1e-4)  # batches were others
    assert ahead.unknown > 6
