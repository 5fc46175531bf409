"""Costs that a worker reports are those of its profile: the real scheduler on a paced runner, in virtual time."""

import random
from collections import deque
from collections.abc import Iterable

import pytest

from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.events import EventLog
from legato_engine.runner import profile
from legato_engine.runner.paced import PacedRunner
from legato_engine.runner.profile import Profile
from legato_engine.scheduler.limits import SchedulerLimits
from legato_engine.scheduler.request import Request
from legato_engine.scheduler.results import SchedulerLoad
from legato_engine.scheduler.scheduler import Scheduler
from legato_protocol.sampling_params import SamplingParams

VOCABULARY = 49_152
CHUNK = 512
MIXED = [32, 512, 100, 1500, 32, 300, 4000] * 15
RATE = 0.15  # relative error: the autoscaler has no number that matters more


class VirtualWorker:
    """Computes until nothing is left; time passes in steps alone."""

    def __init__(self, given: Profile) -> None:
        self.now = 0.0
        self.runner = PacedRunner(given, 16, VOCABULARY, "m", lambda: self.now, self._sleep)
        limits = SchedulerLimits("unified", 16, 8192, chunk_tokens=CHUNK, max_waiting=1000)
        self.scheduler = Scheduler(limits, BlockPool(self.runner.num_blocks, EventLog("e")), "kv")
        self._times = given.step
        self._rng = random.Random(0)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def serve(self, prompts: Iterable[int], output: int, utilization: float) -> SchedulerLoad:
        """Prompts of so many tokens, which come at random times and keep it busy for this share of its time."""
        arrivals, at = deque[tuple[float, int]](), 0.0
        for prompt in prompts:
            alone = self._times.seconds(0, 0, prompt, prompt * prompt / 2)
            at += self._rng.expovariate(utilization / alone)
            arrivals.append((at, prompt))
        while arrivals or not self.scheduler.idle:
            if self.scheduler.idle:
                self.now = max(self.now, arrivals[0][0])
            while arrivals and arrivals[0][0] <= self.now:
                self._add(arrivals.popleft()[1], output)
            batch = self.scheduler.schedule(self.now)
            assert batch is not None
            self.scheduler.process(batch, self.runner.step(batch), self.now)
        return self.scheduler.load()

    def _add(self, prompt: int, output: int) -> None:
        tokens = self._rng.choices(range(VOCABULARY), k=prompt)
        params = SamplingParams(max_tokens=output, seed=0)
        name = str(self._rng.random())
        self.scheduler.add(Request(name, 1, tokens, prompt, params, deadline=1e9), self.now)


@pytest.mark.parametrize("name", profile.shipped())
@pytest.mark.parametrize("output", [1, 20], ids=["only prompts", "with decodes"])
@pytest.mark.parametrize(
    ("prompts", "utilization"),
    [([32] * 200, 0.5), ([32] * 200, 0.9), ([512] * 100, 0.2), ([512] * 100, 0.9), (MIXED, 0.5)],
    ids=["32", "32, busy", "512, idle", "512, busy", "mixed"],
)
def test_the_rate_is_that_of_the_profile(name: str, prompts: list[int], utilization: float, output: int) -> None:
    assert relative_rate(name, prompts, output, utilization) == pytest.approx(1, rel=RATE)


@pytest.mark.parametrize("name", profile.shipped())
def test_short_prompts_that_come_alone_give_a_rate_that_is_rather_too_low(name: str) -> None:
    """Steps of nearly one size do not show which part of their time is fixed."""
    assert 0.75 < relative_rate(name, [32] * 200, 1, 0.2) < 1 + RATE


def relative_rate(name: str, prompts: list[int], output: int, utilization: float) -> float:
    """The fitted rate of prompt tokens, relative to the profile's for steps of that size."""
    given = profile.find(name)
    cost = VirtualWorker(given).serve(prompts, output, utilization).prefill_cost
    assert cost is not None
    tokens = cost.chunk_tokens
    return cost.rate * given.step.seconds(0, 0, tokens, tokens * cost.context) / tokens


def test_with_mixed_prompts_each_coefficient_is_that_of_the_profile() -> None:
    for given in map(profile.find, profile.shipped()):
        load, step = VirtualWorker(given).serve(MIXED, 20, 0.5), given.step
        prefill, decode = load.prefill_cost, load.decode_cost
        assert prefill is not None
        assert decode is not None
        fitted = prefill.per_step, prefill.per_token, prefill.per_pair, decode.per_step
        assert fitted == pytest.approx((step.per_step, step.per_token, step.per_pair, step.per_step), rel=RATE)
        for rows in (1, 8):
            seconds = decode.per_step + rows * (decode.per_row + 1000 * decode.per_context)
            assert seconds == pytest.approx(step.seconds(rows, 1000 * rows, 0, 0), rel=RATE)
