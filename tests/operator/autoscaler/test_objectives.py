"""Objectives below what an empty worker takes are told with the arithmetic, and others are not."""

import pytest
from known_signals import NO_TRAFFIC, arriving, decoder, prefiller, prompts, spec

from legato_operator.autoscaler import record
from legato_operator.autoscaler.decide import decide
from legato_operator.autoscaler.objectives import TPOT, TTFT, unmet_tpot, unmet_ttft
from legato_operator.autoscaler.signals import DecodeCost, PrefillCost, Signals

STEP, TOKEN, CHUNK = 0.0064, 1e-4, 512
PREFILL = PrefillCost(TOKEN + STEP / CHUNK, 0.0, STEP, CHUNK)
DECODE = DecodeCost(STEP, 1e-4, 1e-7)


def _unmet(known, **parts):
    made = decide(known, {}, spec(**parts), {"prefill": 1, "decode": 1}, 0.0).pools
    return {pool: dict(each.unmet) for pool, each in made.items()}


@pytest.mark.parametrize(("objective", "unmet"), [(0.001, True), (0.0064, True), (0.0066, False), (1.0, False)])
def test_least_times_are_a_decode_step_of_one_sequence_and_a_prefill_of_one_token(objective, unmet):
    """A step by itself counts in full: no other prompt shares it."""
    assert bool(unmet_tpot(objective, DECODE)) is bool(unmet_ttft(objective, PREFILL)) is unmet
    assert bool(unmet_tpot(objective, DecodeCost(0.0065, 0, 0, only_rows=1))) is unmet
    assert not unmet_tpot(objective, DecodeCost(0.0065, 0, 0, only_rows=2))


def test_the_arithmetic_of_a_step_is_in_the_text():
    assert unmet_tpot(0.001, DECODE) == (
        "slo.tpot is 1 ms, but a decode step of one sequence takes 6.5 ms (6.4 ms a step + 0.1 ms a sequence): "
        "more workers cannot meet it"
    )


def test_where_prompts_are_known_those_that_half_of_them_are_no_shorter_than_count():
    """For 1,024 tokens: two steps of 6.4 ms, and 0.1 ms each."""
    mixed = (*prompts(4, 16), *prompts(6, 1500))
    assert unmet_ttft(0.1, PREFILL, mixed) == (
        "slo.ttft is 100 ms, but prefill of 1024 tokens takes 115 ms on an idle worker "
        "(2 steps x 6.4 ms + 1024 tokens x 0.1 ms), and half of the prompts are as long or longer: "
        "more workers cannot meet it for these"
    )
    assert unmet_ttft(0.116, PREFILL, mixed) == ""
    assert unmet_ttft(0.1, PREFILL, (*prompts(5, 16), *prompts(5, 1500)))
    assert unmet_ttft(0.1, PREFILL, (*prompts(6, 16), *prompts(4, 1500))) == ""


def test_attention_is_a_part_of_it():
    """1,024 tokens are 1,024 x 1,025 / 2 pairs, here of 1 us."""
    quadratic = PrefillCost(PREFILL.per_token, 1e-6, STEP, CHUNK)
    assert "takes 640 ms on an idle worker" in unmet_ttft(0.1, quadratic, prompts(1, 1024))
    assert "1024 tokens x 0.1 ms + 525 ms of attention)" in unmet_ttft(0.1, quadratic, prompts(1, 1024))


def test_each_pool_tells_of_the_objective_that_depends_on_it():
    costs = {"prefill_cost": PREFILL, "decode_cost": DECODE}
    known = Signals((prefiller(**costs), decoder(**costs)), NO_TRAFFIC)
    low = _unmet(known, slo={"ttft": "1ms", "tpot": "1ms"})
    assert {pool: set(found) for pool, found in low.items()} == {"prefill": {TTFT}, "decode": {TPOT}}
    assert _unmet(known) == {"prefill": {}, "decode": {}}


def test_unified_workers_have_both():
    known = Signals((decoder(decode_cost=DECODE, prefill_cost=PREFILL),), NO_TRAFFIC)
    scaling = {"prefill": {"max": 0}}
    made = decide(known, {}, spec(scaling=scaling, slo={"ttft": "1ms", "tpot": "1ms"}), {"decode": 1}, 0.0).pools
    assert set(made["decode"].unmet) == {TTFT, TPOT}


def test_prompts_are_those_that_arrive():
    """2,000 tokens take 0.25 s, and no shorter prompts than 1,024 are known of them: 0.128 s."""
    known = Signals((prefiller(), decoder()), arriving(60, 2000))
    assert TTFT in _unmet(known, slo={"ttft": "120ms"})["prefill"]
    assert not _unmet(known, slo={"ttft": "130ms"})["prefill"]


def test_while_there_is_no_prefill_worker_those_that_prefill_instead_count():
    known = Signals((decoder(prefill_cost=PREFILL),), NO_TRAFFIC)
    assert TTFT in _unmet(known, slo={"ttft": "1ms"})["prefill"]


def test_nothing_is_told_before_anything_was_measured():
    known = Signals((prefiller(prefill_cost=None), decoder(decode_cost=None)), NO_TRAFFIC)
    assert _unmet(known, slo={"ttft": "1ms", "tpot": "1ms"}) == {"prefill": {}, "decode": {}}


def test_the_record_has_it_only_where_there_is_something_to_tell():
    known = Signals((prefiller(), decoder()), NO_TRAFFIC)
    low = decide(known, {}, spec(slo={"tpot": "1ms"}), {"prefill": 1, "decode": 1}, 0.0).pools
    assert "unmet" not in record.entry(low["prefill"], "")
    assert record.entry(low["decode"], "")["unmet"] == [low["decode"].unmet[TPOT]]
