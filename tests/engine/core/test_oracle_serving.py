"""Greedy float32 output of a tiny model, served by real cores and schedulers, is that of transformers.

That the real model's is, too, however it is computed: see test_oracle.
"""

import time
from collections.abc import Iterator
from dataclasses import replace

import interpreted_models
import lora_folders
import pytest
import torch

from legato_engine.runner.runner import Runner
from legato_engine.scheduler.request import RequestState
from legato_engine.transfer import ucx
from legato_engine.transfer.link import Link
from legato_protocol.stream import Generate

CHECKPOINT = lora_folders.RandomCheckpoint(replace(interpreted_models.LLAMA, max_length=1024))
LENGTHS = (5, 1, 12, 3, 33, 64, 17, 9, 2, 40, 21, 31, 8, 130, 277, 6)  # of 16 prompts
NEW_TOKENS = 32
PATIENCE = 250.0  # seconds; only a hang reaches it


def load():
    """A worker's model and arena. No block holds zeros by chance: whatever is read must have come."""
    made = Runner.load(CHECKPOINT, block_size=16, kv_cache_bytes=4 << 20, dtype="float32", threads=1, max_length=1024)
    with torch.inference_mode():
        made.arena.blocks.fill_(3.0)
    return made


@pytest.fixture(scope="module")
def runner():
    return load()


@pytest.fixture(scope="module")
def prompts():
    return interpreted_models.prompts(CHECKPOINT.config.vocab_size, LENGTHS)


class Serving:
    """Requests for all prompts, each under its index as id."""

    def __init__(self, world, prompts):
        self.world = world
        self.prompts = prompts
        self.ids = [str(index) for index in range(len(prompts))]

    def worker(self, name, runner, **options):
        limits = {"max_length": 1024, "max_running": 16, "max_waiting": 16, "chunk": 128}
        return self.world.worker(name, runner=runner, **{**limits, **options})

    def sequence(self, index):
        return self.world.sequence(self.prompts[index], max_tokens=NEW_TOKENS, temperature=0.0, stop_token_ids=())

    def generate(self, worker, prefix="", order=None):
        """In this order of arrival, that of the prompts unless given."""
        worker.tell(*[Generate(f"{prefix}{i}", 1, self.sequence(i)) for i in order or range(len(self.prompts))])

    def run(self, worker, prefix="", watch=lambda: None):
        """Turns of all workers until `worker` told the ends of all its sequences; returns their tokens."""
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up:
            self.world.run(1)
            watch()
            assert not worker.failures()
            if all(worker.finished(id=prefix + id) for id in self.ids):
                return [worker.tokens(prefix + id) for id in self.ids]
        raise AssertionError("it hangs")


@pytest.fixture
def serving(world, prompts):
    return Serving(world, prompts)


@pytest.fixture
def check(oracle_of, prompts):
    oracle = oracle_of(CHECKPOINT)

    def check_all(outputs):
        for prompt, output in zip(prompts, outputs, strict=True):
            assert len(output) == NEW_TOKENS
            oracle.check(prompt, output)

    return check_all


class Recorder:
    """A runner that remembers of each batch how many rows decoded and how many had more than a token; and how many
    sequences that had output already were computed again."""

    def __init__(self, runner):
        self._runner = runner
        self.batches = []
        self.again = 0

    def __getattr__(self, name):
        return getattr(self._runner, name)

    def step(self, batch):
        longer = [row for row in batch.rows if len(row.tokens) > 1]
        self.batches.append((len(batch.rows) - len(longer), len(longer)))
        self.again += sum(draw.position > draw.prompt_len for row in longer for draw in row.draws)
        return self._runner.step(batch)


@pytest.fixture
def open_link() -> Iterator:
    """Opens links over TCP, whose UCX threads end with the test."""
    opened: list[Link] = []

    def open_one(runner: Runner) -> Link:
        opened.append(ucx.open("TCP", "127.0.0.1", runner.arena.address, runner.arena.nbytes))
        return opened[-1]

    yield open_one
    for link in opened:
        link.close()


def test_unified_in_batches_of_16_then_from_the_prefix_cache(serving, runner, check, prompts):
    runner = Recorder(runner)
    worker = serving.worker("u", runner, link=False)
    serving.generate(worker)
    check(serving.run(worker))
    assert (16, 0) in runner.batches
    assert any(decoding and prompt for decoding, prompt in runner.batches)

    serving.generate(worker, "again-")
    check(serving.run(worker, "again-"))
    for index, prompt in enumerate(prompts):
        assert worker.items(f"again-{index}")[0].cached_tokens == (len(prompt) - 1) // 16 * 16


def test_disaggregated(serving, runner, check, open_link):
    """Every KV block goes from one core to the other over UCX, as between two processes."""
    prefill, decode = (
        serving.worker(name, made, link=open_link(made)) for name, made in (("p", runner), ("d", load()))
    )
    for index, id in enumerate(serving.ids):
        serving.world.hand_off(prefill, decode, serving.sequence(index), room=index + 1, id=id)
    check(serving.run(decode))
    assert {report.transport for report in decode.reports()} == {"ucx:tcp"}
    assert sorted(report.id for report in decode.reports()) == sorted(serving.ids)
    assert not any(prefill.items(id) for id in serving.ids)


def test_after_preemption(serving, runner, check, prompts):
    """Sequences are taken in without regard to their growth, so that some lose their blocks while they decode: first
    the three that came last, then, when these were preempted as often as may be, the longest one."""
    longest = max(range(len(prompts)), key=lambda index: len(prompts[index]))
    last = [index for index in range(len(prompts)) if len(prompts[index]) < 32][-3:]
    order = [index for index in range(len(prompts)) if index not in (longest, *last)] + [longest, *last]
    blocks = sum(len(prompt) // 16 + 1 for prompt in prompts)
    runner, preempted = Recorder(runner), set()
    worker = serving.worker("u", runner, link=False, blocks=blocks, growth_tokens=0)

    def watch():
        for id in serving.ids:
            for request in worker.scheduler.requests(f"{serving.world.gateway}/{id}"):
                if request.state is RequestState.WAITING and request.outputs:
                    preempted.add(int(id))

    serving.generate(worker, order=order)
    check(serving.run(worker, watch=watch))
    assert longest in preempted
    assert len(preempted) > 1
    assert runner.again
