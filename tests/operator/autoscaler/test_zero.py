"""A pool without workers, and the way there and back."""

import dataclasses

import pytest
from known_signals import NO_TRAFFIC, arriving, decoder, prefiller, prompts, spec

from legato_operator.autoscaler import decision
from legato_operator.autoscaler.decide import decide
from legato_operator.autoscaler.signals import DecodeCost, Signals
from legato_operator.autoscaler.window import KeptSize, Window

ONE, NONE = {"prefill": 1, "decode": 1}, {"prefill": 0, "decode": 0}
HELD = {"queued": 3, "queued_tokens": 300, "queued_prompt_tokens": 300, "head_wait": {"no_worker": 2.0}}
IDLE = Signals((prefiller(), decoder()), NO_TRAFFIC)
EMPTY = Signals((), NO_TRAFFIC)
UNMEASURED = {"slots": None, "decode_cost": DecodeCost(1.0, 0.0)}  # no term asks for it


def _spec(**scaling):
    bounds = {"min": 0, "max": 9}
    given = {"prefill": bounds, "decode": bounds, "idleAfter": "5m", "scaleDownStabilization": "10m"}
    return spec(scaling={**given, **scaling})


def _until(until, known, current=ONE, windows=None, since=0.0, **scaling):
    """The decision at that time, after one every two seconds, of which each saw `known`."""
    windows, now, given = windows or {}, since, _spec(**scaling)
    while True:
        made = decide(known, windows, given, current, now)
        if now >= until:
            return made
        windows, now = made.windows, now + 2.0


def _wishes(made):
    return {pool: each.desired for pool, each in made.pools.items()}


def test_a_service_at_which_nothing_arrives_or_runs_goes_to_zero_after_idle_after_and_not_before():
    late, in_time = _until(298.0, IDLE), _until(300.0, IDLE)
    assert _wishes(late) == ONE
    assert late.pools["decode"].reason == decision.COOLING_DOWN
    assert late.pools["decode"].change.endswith("shrinks to 0 in 2 s, if nothing arrives or runs until then")
    assert _wishes(in_time) == NONE
    assert in_time.pools["decode"].reason == decision.IDLE


@pytest.mark.parametrize(("idle_after", "sizes"), [("5m", (5, 5, 0)), ("15m", (5, 1, 0))])
def test_more_than_one_worker_go_by_the_window_and_the_last_one_by_idle_after(idle_after, sizes):
    """A burst that comes back finds the workers of the last one, however early nothing runs."""
    five = {"prefill": 1, "decode": 5}
    at = (590.0, 600.0 if idle_after == "15m" else 598.0, 900.0)
    found = [_until(now, IDLE, five, idleAfter=idle_after).pools["decode"].desired for now in at]
    assert tuple(found) == sizes


def _idle_but(traffic=NO_TRAFFIC, prefill=None, **decode):
    return Signals((prefiller(**prefill or {}), decoder(**decode)), traffic)


ALONE = {"prefill": 0, "decode": 1}
DRAINS = prefiller(draining=True, queue_tokens=9)


@pytest.mark.parametrize(
    ("known", "current"),
    [
        pytest.param(_idle_but(arriving(60, 100)), ONE, id="it arrives"),
        pytest.param(_idle_but(dataclasses.replace(NO_TRAFFIC, queued=1)), ONE, id="it is queued"),
        pytest.param(_idle_but(dataclasses.replace(NO_TRAFFIC, waiting=prompts(1, 10))), ONE, id="it waits"),
        pytest.param(_idle_but(running=1, **UNMEASURED), ONE, id="it runs"),
        pytest.param(_idle_but(waiting=1, **UNMEASURED), ONE, id="it waits for blocks"),
        pytest.param(_idle_but(prefill={"waiting": 1}), ONE, id="it waits for a decode worker"),
        pytest.param(_idle_but(prefill={"queue_tokens": 1}), ONE, id="it is prefilled"),
        pytest.param(_idle_but(sample_age=None), ONE, id="a worker is silent"),
        pytest.param(_idle_but(None), ONE, id="a gateway is silent"),
        pytest.param(Signals((decoder(),), arriving(60, 100)), ALONE, id="without prefill workers: it was short"),
        pytest.param(Signals((DRAINS, decoder()), NO_TRAFFIC), ALONE, id="… a prefill worker drains"),
    ],
)
def test_whatever_is_left_of_a_request_keeps_the_last_decode_worker(known, current):
    assert _until(1000.0, known, current).pools["decode"].desired == 1


@pytest.mark.parametrize(("age", "size"), [(1799.0, 1), (1800.0, 0)])
def test_a_worker_that_starts_stays_until_it_has_served_or_had_its_time(age, size):
    starting = decoder(ready=False, sample_age=None, start_seconds=None, age=age)
    made = _until(1000.0, Signals((starting,), NO_TRAFFIC), {"prefill": 0, "decode": 1})
    assert made.pools["decode"].desired == size


@pytest.mark.parametrize("silent", [Signals((prefiller(), decoder(sample_age=None)), NO_TRAFFIC), Signals((), None)])
def test_nobody_knows_what_ran_while_a_worker_or_gateway_was_silent(silent):
    windows = _until(290.0, IDLE).windows
    windows = decide(silent, windows, _spec(), ONE, 292.0).windows
    assert _wishes(_until(590.0, IDLE, windows=windows, since=294.0))["decode"] == 1
    assert _wishes(_until(592.0, IDLE, windows=windows, since=294.0)) == NONE


def test_a_long_answer_does_not_keep_a_prefill_worker():
    made = _until(300.0, Signals((prefiller(), decoder(running=1, context_tokens=9)), NO_TRAFFIC))
    assert _wishes(made) == {"prefill": 0, "decode": 1}


def test_no_decode_worker_leaves_before_the_last_prefill_worker():
    """The prefill pool had four workers in the last minutes."""
    windows = {"prefill": Window((KeptSize(600.0, 4),), 2.0), "decode": Window((KeptSize(2.0, 0),), 2.0)}
    made = decide(IDLE, windows, _spec(), {"prefill": 4, "decode": 1}, 4.0)
    assert _wishes(made) == {"prefill": 4, "decode": 1}


@pytest.mark.parametrize("traffic", [dataclasses.replace(NO_TRAFFIC, **HELD), arriving(6, 100)])
def test_the_first_request_gets_a_decode_worker_at_once(traffic):
    """And no prefill worker yet: of what that would be good for nothing is known."""
    made = decide(Signals((), traffic), {}, _spec(), NONE, 0.0)
    assert _wishes(made) == {"prefill": 0, "decode": 1}
    assert made.pools["decode"].reason == decision.ACTIVATION
    assert not made.pools["prefill"].missing


def test_it_is_kept_while_it_starts_and_asks_for_no_second_one():
    starting = decoder(ready=False, sample_age=None, start_seconds=None)
    waiting = Signals((starting,), dataclasses.replace(NO_TRAFFIC, **HELD))
    made = _until(1000.0, waiting, {"prefill": 0, "decode": 1})
    assert _wishes(made) == {"prefill": 0, "decode": 1}
    assert made.pools["decode"].reason == decision.ACTIVATION


def test_prefill_workers_follow_once_decode_workers_tell_what_prompts_cost():
    """600 prompts of 2,000 tokens a minute: 3.33 workers, by the rate of the decode worker that prefills meanwhile."""
    alone = decoder(prefill_cost=prefiller().prefill_cost)
    made = decide(Signals((alone,), arriving(600, 2000)), {}, _spec(), {"prefill": 0, "decode": 1}, 0.0)
    assert (made.pools["prefill"].desired, made.pools["prefill"].reason) == (4, decision.ARRIVALS)
    assert decision.ACTIVATION not in {term.reason for term in made.pools["decode"].terms}


@pytest.mark.parametrize(("prompt_tokens", "wish"), [(500, 1), (0, 0)])
def test_a_prompt_asks_for_a_prefill_worker_and_a_preempted_sequence_does_not(prompt_tokens, wish):
    told = {"queue_tokens": 500, "waiting": 1, "prompts": int(prompt_tokens > 0), "prompt_tokens": prompt_tokens}
    alone = decoder(prefill_cost=prefiller().prefill_cost, **told)
    made = decide(Signals((alone,), NO_TRAFFIC), {}, _spec(), {"prefill": 0, "decode": 1}, 0.0)
    assert made.pools["prefill"].desired == wish


@pytest.mark.parametrize(("known", "missing"), [(EMPTY, False), (Signals((), None), True)])
def test_zero_stays_zero_and_only_a_silent_gateway_is_missing(known, missing):
    made = _until(100.0, known, NONE)
    assert _wishes(made) == NONE
    assert {bool(each.missing) for each in made.pools.values()} == {missing}
    assert missing or made.pools["decode"].change == "grows with the first request"
