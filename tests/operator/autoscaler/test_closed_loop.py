"""Decisions that change what is measured next, in virtual time."""

import pytest
from fluid_service import FluidService, Machine, Prompt
from known_signals import spec

from legato_operator.autoscaler.signals import DecodeCost, PrefillCost

HOUR = 3600.0
SIZES = {"prefill": 1, "decode": 1}


def _machine(**given):
    return Machine(**{"prefill": PrefillCost(1 / 8000), "decode": DecodeCost(0.01, 0.0005), "start": 30.0, **given})


def _steady(seconds, each=0.1, tokens=2000, since=0.0, output=20):
    return [Prompt(since + each * number, tokens, tokens, output) for number in range(round(seconds / each))]


def _sizes(service, pool, since):
    return [made.pools[pool].wish for at, made in service.decisions if at >= since]


@pytest.mark.parametrize("told", [0.7, 1.0, 1.3])
def test_an_error_of_the_rate_causes_no_oscillation(told):
    """20,000 tokens/s are 2.5 workers at full load; an hour after the start the wishes are constant."""
    service = FluidService(spec(largest=50), _machine(told=told), dict(SIZES), step=0.5)
    prompts = _steady(2 * HOUR)
    service.run(prompts, 2 * HOUR)
    assert len(set(_sizes(service, "prefill", HOUR))) == 1
    late = [prompt for prompt in prompts if prompt.at > HOUR and prompt.first is not None]
    assert all(prompt.first - prompt.at <= service.spec.slo.ttft for prompt in late)


def test_a_step_of_the_load_is_answered_within_five_seconds_and_the_pool_returns():
    """Only the pool grows that lacks; the other one stays within one worker."""
    service = FluidService(spec(largest=50), _machine(), dict(SIZES), step=0.5)
    calm, burst = _steady(2500.0, each=1.0), _steady(300.0, since=600.0)
    service.run(sorted([*calm, *burst], key=lambda prompt: prompt.at), 2500.0)
    before = _sizes(service, "prefill", 0.0)[299]
    assert max(wish for wish in _sizes(service, "prefill", 600.0)[:4]) > before
    assert _sizes(service, "prefill", 0.0)[-1] == before
    assert max(_sizes(service, "decode", 0.0)) <= 2


def test_long_answers_grow_decode_alone():
    service = FluidService(spec(largest=50), _machine(blocks=1000), dict(SIZES), step=0.5)
    service.run(_steady(600.0, each=0.5, tokens=200, output=1000), 600.0)
    assert max(_sizes(service, "decode", 0.0)) > 2
    assert max(_sizes(service, "prefill", 0.0)) == 1
