"""Decisions that change what is measured next, in virtual time."""

import random

import msgspec
import pytest
from known_signals import spec
from simulated_service import engine, profile, steady, workload

from legato_engine.runner.profile import find
from legato_simulator.workload.workload import Arrival

WINDOW = 300.0  # seconds for which a pool does not shrink
MACHINE = profile(per_step=0.01, per_token=1 / 8000 - 0.01 / 512, per_row=0.0005)  # 8,000 tokens/s in full steps


def _run(arrivals, rate_error=1.0, machine=MACHINE):
    """Wishes by pool as (time, size), one for each look, and every request that ended."""
    given = spec(largest=50, scaling={"scaleDownStabilization": f"{WINDOW:g}s"})
    made = engine(arrivals, spec=given, profile=machine, rate_error=rate_error)
    looks, ended = [], []
    made.tally.set_desired = lambda now, sizes, set_desired=made.tally.set_desired: (
        looks.append((now, dict(sizes))),
        set_desired(now, sizes),
    )
    made.tally.finish = lambda request, end=made.tally.finish: (ended.append(request), end(request))
    made.run()
    return looks, ended


def _sizes(looks, pool, since=0.0):
    return [sizes[pool] for at, sizes in looks if at >= since]


@pytest.mark.parametrize("told", [0.7, 1.3])
def test_an_error_of_the_rate_causes_no_oscillation(told):
    """20,000 tokens/s are 2.5 workers at full load; two windows of a pool that shrinks after the start, the wishes are
    constant for two more."""
    looks, ended = _run(workload(steady(4 * WINDOW, each=0.2, tokens=4000)), told)
    assert len(set(_sizes(looks, "prefill", 2 * WINDOW))) == 1
    assert all(request.ttft <= 1.0 for request in ended if request.arrival.at > 2 * WINDOW)


BURST = workload(steady(1400.0, each=1.0), steady(300.0, since=600.0))


def test_a_step_of_the_load_is_answered_within_five_seconds_and_the_pool_returns():
    """Only the pool grows that lacks; the other one stays within one worker."""
    looks, _ = _run(BURST, machine=msgspec.structs.replace(MACHINE, kv_tokens=480_000))
    before = _sizes(looks, "prefill")[299]
    assert max(_sizes(looks, "prefill", 600.0)[:4]) > before
    assert _sizes(looks, "prefill")[-1] == before
    assert max(_sizes(looks, "decode")) <= 2


@pytest.mark.parametrize("offset", [0.0, 0.5, 1.0, 1.5])
def test_a_step_of_prompts_that_fill_decode_workers_grows_prefill_within_five_seconds_and_no_later_than_decode(offset):
    """Prefill computes 4 of 8 prompts a second; the others hold the blocks of the only decode worker."""
    cpu = msgspec.structs.replace(find("cpu-2-cores-smollm2-135m"), start_seconds=12.0, kv_tokens=12_500)
    at = 64.0 + offset
    step = workload(
        steady(60.0, each=2.0, tokens=500, output=32), steady(20.0, each=0.125, tokens=500, output=32, since=at)
    )
    looks, _ = _run(step, machine=cpu)
    grew = {pool: next(when for when, sizes in looks if sizes[pool] > 1) - at for pool in ("prefill", "decode")}
    assert grew["prefill"] <= min(5.0, grew["decode"])


@pytest.mark.parametrize("look", [0.0, 1.5])
def test_a_step_of_long_answers_is_answered_within_five_seconds_and_by_decode_alone(look):
    """Their blocks fit into one worker for 6 s. The looks are every 2 s, at different distances from the step."""
    cpu, at = find("cpu-2-cores-smollm2-135m"), 180.0 + look
    step = workload(
        steady(180.0, each=2.0, tokens=64, output=400), steady(30.0, each=0.25, tokens=64, output=400, since=at)
    )
    looks, _ = _run(step, machine=cpu)
    assert max(sizes["decode"] for when, sizes in looks if when < at) == 1
    assert next(when for when, sizes in looks if sizes["decode"] > 1) - at <= 5.0
    assert max(_sizes(looks, "prefill")) == 1


def test_a_constant_load_by_chance_grows_decode_no_more_than_it_needs():
    rng, at, arrivals = random.Random(1), 0.0, []
    while (at := at + rng.expovariate(1.0)) < 1800.0:
        arrivals.append(Arrival(at, 64, 400))
    looks, _ = _run(workload(arrivals), machine=find("cpu-2-cores-smollm2-135m"))
    assert max(_sizes(looks, "decode", 300.0)) <= 2
