"""Greedy float32 output of the real model, served by real cores and schedulers, is that of transformers."""

import pytest

from legato_engine.request import State
from legato_engine.runner import Runner
from legato_protocol.stream import Generate

NEW_TOKENS = 64
TURNS = 2000  # far more than any of these needs


@pytest.fixture(scope="module")
def peer_float32(smollm2):
    """A second worker's model and arena."""
    return Runner.load(smollm2, block_size=16, kv_cache_bytes=512 << 20, dtype="float32", threads=1, max_length=4096)


class Serving:
    """Requests for all prompts, each under its index as id."""

    def __init__(self, world, prompts):
        self.world = world
        self.prompts = prompts
        self.ids = [str(index) for index in range(len(prompts))]

    def worker(self, name, runner, **options):
        limits = {"max_length": 4096, "max_running": 16, "max_waiting": 16, "chunk": 512}
        return self.world.worker(name, runner=runner, **{**limits, **options})

    def sequence(self, index):
        return self.world.sequence(self.prompts[index], max_tokens=NEW_TOKENS, temperature=0.0, stop_token_ids=())

    def generate(self, worker, prefix=""):
        worker.tell(*[Generate(prefix + id, 1, self.sequence(index)) for index, id in enumerate(self.ids)])

    def run(self, worker, prefix="", watch=lambda: None):
        """Turns of all workers until `worker` told the ends of all its sequences; returns their tokens."""
        for _ in range(TURNS):
            self.world.run(1)
            watch()
            assert not worker.failures()
            if all(worker.finished(id=prefix + id) for id in self.ids):
                return [worker.tokens(prefix + id) for id in self.ids]
        raise AssertionError(f"not over after {TURNS} turns")


@pytest.fixture
def serving(world, prompts):
    return Serving(world, prompts)


@pytest.fixture
def check(oracle, prompts):
    def check_all(outputs, prompts=prompts):
        for prompt, output in zip(prompts, outputs, strict=True):
            assert len(output) == NEW_TOKENS
            oracle.check(prompt, output)

    return check_all


class Recorder:
    """A runner that remembers of each batch how many rows decoded and how many had more than a token."""

    def __init__(self, runner):
        self._runner = runner
        self.batches = []

    def __getattr__(self, name):
        return getattr(self._runner, name)

    def step(self, batch):
        prompts = sum(len(row.tokens) > 1 for row in batch.rows)
        self.batches.append((len(batch.rows) - prompts, prompts))
        return self._runner.step(batch)


def test_unified_in_batches_of_16_then_from_the_prefix_cache(serving, smollm2_float32, check, prompts):
    runner = Recorder(smollm2_float32)
    worker = serving.worker("u", runner, link=False)
    serving.generate(worker)
    check(serving.run(worker))
    assert (16, 0) in runner.batches
    assert any(decoding and prompt for decoding, prompt in runner.batches)

    serving.generate(worker, "again-")
    check(serving.run(worker, "again-"))
    for index, prompt in enumerate(prompts):
        assert worker.items(f"again-{index}")[0].cached_tokens == (len(prompt) - 1) // 16 * 16


def test_disaggregated(serving, smollm2_float32, peer_float32, check):
    prefill, decode = serving.worker("p", smollm2_float32), serving.worker("d", peer_float32)
    for index, id in enumerate(serving.ids):
        serving.world.hand_off(prefill, decode, serving.sequence(index), room=index + 1, id=id)
    check(serving.run(decode))
    assert sorted(report.id for report in decode.reports()) == sorted(serving.ids)
    assert not any(prefill.items(id) for id in serving.ids)


def test_after_preemption(serving, smollm2_float32, check, prompts):
    """Sequences are taken in without regard to their growth, so that some lose their blocks while they decode."""
    preempted = set()
    serving.prompts = [prompt[:400] for prompt in prompts]
    worker = serving.worker("u", smollm2_float32, link=False, blocks=64, growth_tokens=0)

    def watch():
        for id in serving.ids:
            for request in worker.scheduler.requests(f"{serving.world.gateway}/{id}"):
                if request.state is State.WAITING and request.outputs:
                    preempted.add(id)

    serving.generate(worker)
    check(serving.run(worker, watch=watch), serving.prompts)
    assert len(preempted) > 1
