"""The prefill rate is that of full steps, whatever steps a worker has seen lately. Steps take what formulas say."""

from itertools import count
from random import Random
from typing import NamedTuple

import pytest

from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.events import EventLog
from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.planning.chunk_budget import pairs
from legato_engine.scheduler.requests.limits import SchedulerLimits
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.scheduler import Scheduler
from legato_protocol.sampling.parameters import SamplingParams

CHUNK, BLOCK = 512, 16
PROMPTS = {"short": (32,), "long": (512,), "mixed": (32, 48, 200, 512, 1500)}


class Device(NamedTuple):
    """Seconds of a step: of itself, a prompt's token, a pair of tokens, a sequence that decodes, a token of context."""

    step: float
    token: float
    pair: float
    row: float
    context: float

    def rate(self, kind):
        """Tokens per second of full chunks of such prompts."""
        lengths = PROMPTS[kind]
        tokens, attended = sum(lengths), sum(pairs(length, 0) for length in lengths)
        return tokens / (self.step * tokens / CHUNK + self.token * tokens + self.pair * attended)

    def seconds(self, batch):
        total = self.step
        for row in batch.rows:
            if len(row.tokens) == 1:
                total += self.row + self.context * row.start
            else:
                total += self.token * len(row.tokens) + self.pair * pairs(len(row.tokens), row.start)
        return total


CPU = Device(6e-3, 5e-4, 1.5e-7, 1.5e-3, 2e-7)
GPU = Device(12e-3, 4e-5, 2e-9, 3e-5, 2e-8)  # a small step takes almost as long as a full one


class Machine:
    """A worker on which requests arrive at random, as many as keep it busy for a part of the time."""

    def __init__(self, device=CPU, noise=0.0, outputs=1, **limits):
        self.device = device
        limits = {"role": "unified", "chunk_tokens": CHUNK, "max_length": 4000, "max_running": 32, **limits}
        pool = BlockPool(4000, EventLog("epoch"))
        self.scheduler = Scheduler(SchedulerLimits(block_size=BLOCK, **limits), pool, "revision")
        self.random, self.noise, self.outputs, self.now = Random(7), noise, outputs, 0.0
        self.ids = count()

    @property
    def rate(self):
        cost = self.scheduler.load().prefill_cost
        return cost.rate if cost is not None else 0.0

    def serve(self, kind, requests, slowness=1.0):
        lengths = PROMPTS[kind]
        between = 2 * sum(lengths) / len(lengths) / self.device.rate(kind)
        due = self.now
        while requests or not self.scheduler.idle:
            while requests and due <= self.now:
                self.arrive(self.random.choice(lengths))
                requests -= 1
                due += self.random.expovariate(1 / between)
            batch = self.scheduler.schedule(self.now)
            if batch is None:
                self.now = due
                continue
            self.now += self.device.seconds(batch) * slowness * self.random.uniform(1 - self.noise, 1 + self.noise)
            output = tuple(tuple(Sampled(1) for _ in row.draws) for row in batch.rows)
            self.scheduler.process(batch, output, self.now)

    def arrive(self, length):
        number = next(self.ids)
        tokens = [10_000 + number, *range(1, length)]  # no other prompt begins so: nothing is cached
        params = SamplingParams(max_tokens=self.outputs, seed=1)
        self.scheduler.add(Request(f"r{number}", 1, tokens, length, params, self.now + 1e6), self.now)

    def is_true(self, kind, slowness=1.0):
        """True if the rate in its load is the device's, within 15 %."""
        return self.rate == pytest.approx(self.device.rate(kind) / slowness, rel=0.15)


@pytest.fixture(params=[CPU, GPU], ids=["cpu", "gpu"])
def device(request):
    return request.param


@pytest.fixture(
    params=[{}, {"noise": 0.1}, {"noise": 0.1, "outputs": 20, "tpot": 0.15}], ids=["exact", "noisy", "decoding"]
)
def machine(request, device):
    """Only prefills, or computes its prompts alongside sequences that decode."""
    return Machine(device, **request.param)


@pytest.mark.parametrize("kind", PROMPTS)
def test_the_rate_of_a_fresh_worker_is_true_for_all_kinds_of_prompts(machine, kind):
    machine.serve(kind, 80)
    assert machine.is_true(kind)


def test_the_rate_stays_true_when_prompts_change(machine):
    for kind in ("long", "short", "mixed", "short", "long"):
        machine.serve(kind, 70)
        assert machine.is_true(kind), kind


@pytest.mark.parametrize(
    ("noise", "history"),
    [
        (0.1, [("mixed", 100), *[("short", 1)] * 800]),
        (0.0, [("long", 2, 50.0), ("mixed", 60)]),
        (0.0, [("short", 100), ("long", 1, 10.0), ("short", 30), ("long", 20)]),
        (0.1, [("mixed", 150), ("mixed", 200, 2.0)]),
        (0.1, [("mixed", 150), ("long", 200, 2.0)]),
    ],
    ids=[
        "hundreds of equal small steps say nothing about larger ones",
        "cold steps do not count",
        "one slow step of a size says little",
        "the machine becomes slower",
        "steps of other sizes were seen last while it was faster",
    ],
)
def test_the_rate_stays_true(device, noise, history):
    machine = Machine(device, noise)
    for served in history:
        machine.serve(*served)
    kind, _, *slowness = served
    assert machine.is_true(kind, *slowness)


def test_nothing_is_concluded_from_only_small_steps_for_much_larger_ones():
    machine = Machine()
    for _ in range(50):
        machine.serve("short", 1)
    assert machine.scheduler.load().prefill_cost.chunk_tokens == 2 * 32


def test_before_any_prompt_there_is_no_rate():
    machine = Machine()
    assert machine.scheduler.load().prefill_cost is None
    machine.serve("short", 2)  # cold
    assert machine.scheduler.load().prefill_cost is None
    machine.serve("short", 1)
    assert machine.rate > 0
