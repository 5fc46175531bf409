"""Decisions by example, with numbers that can be recomputed by hand."""

import dataclasses

import pytest
from known_signals import NO_TRAFFIC, ONE, QUIET, arriving, decoder, prefiller, prompts, spec

from legato_operator.autoscaler import decision
from legato_operator.autoscaler.decide import decide
from legato_operator.autoscaler.decision import ARRIVALS, BACKLOG, KV_BLOCKS, SLOTS, STEP_TIME
from legato_operator.autoscaler.signals import Blocks, DecodeCost, OutputLengths, Signals, Traffic
from legato_operator.autoscaler.window import KeptSize, Window

IDLE = Signals((prefiller(), decoder()), NO_TRAFFIC)
UNIFIED = {"scaling": {"prefill": {"max": 0}}}


def _decide(known, current=ONE, windows=QUIET, now=1.0, **parts):
    return decide(known, windows, spec(**parts), current, now).pools


def _term(made, reason):
    return next(term for term in made.terms if term.reason == reason)


def _reasons(made):
    return {term.reason for term in made.terms}


def _queued(tokens, traffic, *others):
    """One prefill worker with that queue and an idle decode worker, and others."""
    return Signals((prefiller(queue_tokens=tokens), decoder(), *others), traffic)


def _decoding(traffic=NO_TRAFFIC, *others, **given):
    """One idle prefill worker and a decode worker with these signals, and others."""
    return Signals((prefiller(), decoder(**given), *others), traffic)


BURST = prompts(26, 2000)
NEWEST = Traffic(60.0, BURST, 10.0, BURST, newest_seconds=4.0, newest=BURST)
LATELY = dataclasses.replace(arriving(60, 2000), recent=prompts(200, 2000))
BEHIND = arriving(60, 2000, waiting=(*prompts(20, 2000), *prompts(3, 100_000)))
DRAINING = [prefiller(f"prefill-{n}", queue_tokens=50_000, draining=True) for n in (1, 2)]
BOTH = dataclasses.replace(arriving(120, 2000), arrivals=(*prompts(120, 2000), *prompts(3, 100_000)))
LONG = arriving(1, 100_000, waiting=prompts(1, 100_000))


@pytest.mark.parametrize(
    ("known", "reason", "workers", "wish"),
    [
        # Before any queue builds up: 600 prompts of 2,000 tokens a minute are 20,000 tokens/s for 8,000 x 0.75.
        (_queued(0, arriving(600, 2000)), ARRIVALS, 20_000 / 8_000 / 0.75, 4),
        # 4,000 tokens/s need 0.67; 800,000 queued ones are 100 s of work, of which 70 s are left in 60 s.
        (_queued(800_000, arriving(120, 2000)), BACKLOG, 4 / 6 + (70 - 0.872 * 4 / 6) / 60, 2),
        # 16 and 9 a minute that exceed the objective count less one: without them the queue would grow for ever.
        (_queued(0, arriving(16, 100_000)), ARRIVALS, 15 * 12.5 / 60, 4),
        (_queued(0, arriving(9, 100_000)), ARRIVALS, 8 * 12.5 / 60, 2),
        # Of prompts of more than a minute, each keeps a worker busy.
        (_queued(0, arriving(3, 1_000_000)), ARRIVALS, (3 * 125 - 60) / 60, 6),
        # Prompts within the objective come in addition: 0.67 and 0.42 workers.
        (_queued(0, BOTH), ARRIVALS, 4 / 6 + 2 * 12.5 / 60, 2),
    ],
)
def test_prefill_follows_its_work(known, reason, workers, wish):
    made = _decide(known)["prefill"]
    assert _term(made, reason).workers == pytest.approx(workers, rel=1e-3)
    assert (made.desired, made.reason) == (wish, reason)


@pytest.mark.parametrize(
    ("known", "reason", "number", "value"),
    [
        # 200 prompts of 0.25 s in 10 s: 50 s of work, of which half a deviation, the root of 200 x 0.25 ^ 2, is chance.
        (_queued(800_000, LATELY), BACKLOG, "arrivals", (50 - 0.5 * 12.5**0.5) / 10),
        # 26 prompts of 0.25 s in 4 s are 1.3 workers' work more or less, while 10 s show 0.65.
        (_queued(20_000, NEWEST), BACKLOG, "load", (26 - 26**0.5) * 0.25 / 4),
        # Three of 100,000 tokens are half done, two of them on workers that drain; 20 of 2,000 wait behind the third.
        (_queued(90_000, BEHIND, *DRAINING), BACKLOG, "backlogTokens", 40_000),
        # 100,000 tokens take 12.5 s where 1 s is the objective: counted separately.
        (_queued(100_000, LONG), ARRIVALS, "oversizedTokens", 100_000),
    ],
)
def test_numbers_of_a_prefill_term(known, reason, number, value):
    assert _term(_decide(known)["prefill"], reason).numbers[number] == pytest.approx(value)


@pytest.mark.parametrize(
    "known",
    [
        _queued(4_000, arriving(120, 2000)),  # a queue that ready workers do within the objective
        _queued(100_000, LONG),  # a prompt that exceeds the objective by itself
        # 12.5 s of work within the first 4 s: one of a kind that lasts for a minute, as far as is known.
        _queued(100_000, dataclasses.replace(LONG, seconds=4.0, recent_seconds=4.0)),
        # 0.9 s of work: a rate of 0.45 workers, if two seconds showed one.
        *(_queued(0, Traffic(seconds, prompts(1, 7200), seconds, prompts(1, 7200))) for seconds in (2.0, 10.0)),
    ],
)
def test_no_prefill_worker_is_added_for_little_or_lone_work(known):
    made = _decide(known)["prefill"]
    assert (made.desired, made.needed) == (1, 1)
    assert BACKLOG not in _reasons(made)


def test_workers_that_start_count_for_what_they_will_do_meanwhile():
    """So a pod that cannot be scheduled asks for no further one."""
    starting = prefiller("prefill-1", ready=False, age=50.0, start_seconds=None, sample_age=None)
    before, after = (_decide(_queued(800_000, arriving(120, 2000), *more)) for more in ((), (starting,)))
    assert _term(after["prefill"], BACKLOG).workers < _term(before["prefill"], BACKLOG).workers


HELD = {"queued": 50, "queued_tokens": 4_000_000, "queued_prompt_tokens": 400_000, "head_wait": {"decode_room": 2.0}}


@pytest.mark.parametrize(("size", "wish"), [(16, 29), (32, 15)])
def test_a_queue_that_waits_for_decode_room_scales_decode_and_not_prefill(size, wish):
    """(980 + 25,000) / (1,000 x 0.9) = 28.9, in the blocks that workers have, not those of the manifest."""
    made = _decide(_decoding(arriving(120, 2000, **HELD), blocks=Blocks(20, 0, 980, size=size), running=20))
    assert (made["prefill"].desired, made["decode"].desired) == (1, wish)


def test_while_prefill_computes_less_than_arrives_what_arrived_lately_waits_for_it_whatever_the_head_waits_for():
    """10,000 tokens/s where 8,000 are computed: of 4,000,000 held ones, 100,000 arrived within 10 s."""
    made = _decide(_decoding(dataclasses.replace(arriving(300, 2000), **HELD)))
    assert _term(made["prefill"], BACKLOG).numbers["backlogTokens"] == 100_000
    assert made["prefill"].desired == 3


def test_blocks_of_two_sizes_are_added_by_their_tokens():
    """While `blockSize` changes: 900 of 64 tokens are 3,600 of 16, of which four workers have 1,000 each."""
    old = [decoder(f"decode-{i}", blocks=Blocks(1000, 0, 0), running=1) for i in (1, 2, 3)]
    made = _decide(_decoding(arriving(0, 2000), *old, blocks=Blocks(100, 0, 900, size=64), running=1))["decode"]
    numbers = _term(made, KV_BLOCKS).numbers
    assert (numbers["used"], numbers["capacity"]) == (3600, 1000)


@pytest.mark.parametrize(
    ("output", "start", "blocks"),
    [(None, 60.0, 0), (120, 60.0, 2000), (600, 60.0, 10_000), (6000, 60.0, 10_000), (None, 0.0, 10_000)],
)
def test_queued_prompts_that_wait_for_prefill_count_for_as_long_as_they_decode(output, start, blocks):
    """160,000 tokens in 10,000 blocks: 120 tokens at 0.1 s are a fifth of the 60 s in which prefill takes them on. All
    count where workers start in no time."""
    queued = {"queued": 50, "queued_tokens": 160_000, "queued_prompt_tokens": 160_000, "head_wait": {"prefill": 2.0}}
    traffic = arriving(120, 2000, **queued, output=None if output is None else OutputLengths(output, 0))
    made = _decide(_decoding(traffic, start_seconds=start))["decode"]
    assert _term(made, KV_BLOCKS).numbers["queued"] == blocks
    assert _term(made, SLOTS).numbers["sequences"] == pytest.approx(50 * blocks / 10_000)


@pytest.mark.parametrize(
    ("prefillers", "outputs", "most", "sequences", "wish"),
    [
        # Each of the six added sends 4 requests/s, which stay for 2 s in the queue and 200 steps of 74 ms each.
        (1, 200, 10_000, 6 * 4 * (2 + 200 * 0.074), 7),
        # Not more than will be queued until they serve: 100 now, and 10 a second for the 60 s of a start.
        (1, 100_000, 10_000, 100 + 10 * 60, 7),
        # Nor for prefill workers that their bound does not allow.
        (1, 200, 3, 2 * 4 * (2 + 200 * 0.074), 3),
        # Those that serve already: a third of the queued ones decode together, 200 tokens at 0.1 s of 60 s.
        (9, 200, 10_000, 100 / 3, 4),
    ],
)
def test_decode_workers_for_what_added_prefill_workers_will_send_are_desired_with_them(
    prefillers, outputs, most, sequences, wish
):
    """10 requests/s of 0.25 s each, far more than is worked off."""
    waiting = {"queued": 100, "queued_tokens": 200_000, "queued_prompt_tokens": 200_000, "head_wait": {"prefill": 2.0}}
    traffic = arriving(600, 2000, **waiting, output=OutputLengths(outputs, 0))
    workers = [prefiller(f"prefill-{i}", queue_tokens=800_000 // prefillers) for i in range(prefillers)]
    bounds = {"prefill": {"min": 0, "max": most}}
    made = _decide(Signals((*workers, decoder()), traffic), {"prefill": prefillers, "decode": 1}, scaling=bounds)
    assert _term(made["decode"], SLOTS).numbers["sequences"] == pytest.approx(sequences)
    assert made["prefill"].desired == wish


def test_one_hot_worker_in_a_roomy_pool_is_no_reason_to_grow():
    """(1,000 + 3 x 100) / 900."""
    cold = [decoder(f"decode-{i}", blocks=Blocks(900, 0, 100), running=1) for i in range(1, 4)]
    known = _decoding(NO_TRAFFIC, *cold, blocks=Blocks(0, 0, 1000), running=10)
    assert _decide(known, {"prefill": 1, "decode": 4})["decode"].desired == 2


GROWING = {"blocks": Blocks(900, 0, 100, pending=200, growth=600), "running": 60, "waiting": 40, "slots": 1000}
LEAVING = decoder("decode-1", draining=True, blocks=Blocks(0, 0, 1000), running=10)


@pytest.mark.parametrize(
    ("known", "reason", "workers"),
    [
        # What is promised, and the spread of output lengths: 100 + 200 + 600 + 1.645 x 160 / 16 x 10 for 100 sequences.
        (_decoding(arriving(60, 100, output=OutputLengths(200, 160)), **GROWING), KV_BLOCKS, (900 + 164.5) / 900),
        # A step that would exceed the objective: 100 rows at 1 ms in addition to 10 ms are 100 / (0.9 x 100 - 10).
        (_decoding(running=100, slots=1000), STEP_TIME, 1.25),
        # Sequences of a draining worker count, and its room does not.
        (_decoding(NO_TRAFFIC, LEAVING), KV_BLOCKS, 1000 / 900),
    ],
)
def test_decode_follows_blocks_and_the_time_of_a_step(known, reason, workers):
    made = _decide(known)["decode"]
    assert _term(made, reason).workers == pytest.approx(workers)
    assert made.desired == 2


@pytest.mark.parametrize("fixed", [0.9 * 0.1, 0.2])
def test_an_objective_below_an_empty_step_scales_nothing(fixed):
    known = _decoding(running=100, slots=1000, decode_cost=DecodeCost(fixed, 0.001))
    assert _decide(known)["decode"].desired == 1


@pytest.mark.parametrize(
    ("traffic", "given", "added", "wish"),
    [
        (arriving(120, 2000), {"running": 40, "slots": 1000}, True, 2),  # 0.67 for prompts and 0.5 for steps
        # 0.67 for prompts and 0.89 for blocks: prompts take none of the steps that nothing decodes in.
        (arriving(120, 2000), {"blocks": Blocks(200, 0, 800)}, False, 1),
        (NO_TRAFFIC, {"running": 40, "slots": 1000}, False, 1),
        (arriving(120, 2000), {"slots": 1000}, False, 1),
    ],
)
def test_unified_workers_add_up_time_for_prompts_and_steps_and_not_blocks(traffic, given, added, wish):
    known = Signals((decoder(prefill_cost=prefiller().prefill_cost, **given),), traffic)
    made = _decide(known, {"decode": 1}, **UNIFIED)
    assert list(made) == ["decode"]
    assert (made["decode"].desired, decision.PREFILL_AND_DECODE in _reasons(made["decode"])) == (wish, added)


def test_a_wish_goes_down_when_its_maximum_is_old_and_not_before():
    windows, size = {}, {"prefill": 5, "decode": 1}
    for now in range(0, 300, 20):
        made = decide(IDLE, windows, spec(), size, float(now))
        windows = made.windows
        assert made.pools["prefill"].desired == 5
    last = decide(IDLE, windows, spec(), size, 300.0).pools["prefill"]
    assert (last.desired, last.reason) == (1, decision.COOLING_DOWN)


@pytest.mark.parametrize(("start", "kept"), [(60.0, 60.0), (200.0, 200.0), (400.0, 300.0)])
def test_the_size_of_a_surge_is_kept_for_a_start_time_and_at_most_for_the_window(start, kept):
    """Workers for a backlog, where the arrivals need one."""
    traffic, ready = arriving(120, 2000), {"start_seconds": start}
    surge, after = (
        Signals((prefiller(queue_tokens=tokens, **ready), decoder(**ready)), traffic) for tokens in (9_000_000, 0)
    )
    first = decide(surge, QUIET, spec(), ONE, 1.0)
    grown = {pool: made.desired for pool, made in first.pools.items()}
    assert first.pools["prefill"].reason == decision.BACKLOG
    windows = first.windows
    for now in range(21, 1 + int(kept), 20):
        made = decide(after, windows, spec(), grown, float(now))
        windows = made.windows
        assert made.pools["prefill"].desired == grown["prefill"]
    assert decide(after, windows, spec(), grown, 1.0 + kept).pools["prefill"].desired == 1


@pytest.mark.parametrize(
    ("before", "expected"), [(3, (3, decision.STABILIZING, "")), (1, (1, decision.WITHIN_BOUNDS, "scaling.decode.min"))]
)
def test_a_bound_is_the_reason_only_of_the_size_that_it_sets(before, expected):
    """At rest nothing is needed, and one worker must stay; that three do is due to what was desired lately."""
    windows = {**QUIET, "decode": Window((KeptSize(10.0, before),), 0.0)}
    made = _decide(IDLE, {"prefill": 1, "decode": 4}, windows)["decode"]
    assert (made.desired, made.reason, made.capped_by) == expected


def test_a_size_set_by_hand_is_not_undone_by_what_was_desired_before():
    """Five were desired lately, and two are there: whoever set them has seen that."""
    windows = {**QUIET, "prefill": Window((KeptSize(10.0, 5),), 0.0)}
    made = _decide(IDLE, {"prefill": 2, "decode": 1}, windows)["prefill"]
    assert (made.desired, made.highest) == (2, 5)


def test_what_a_bound_did_not_allow_does_not_keep_a_pool():
    """Five were needed where one may be: it goes after `idleAfter`, and not by the window of five."""
    bounded = spec(scaling={"prefill": {"min": 0, "max": 1}, "idleAfter": "1m"})
    windows = decide(_queued(0, arriving(800, 2000)), {}, bounded, ONE, 0.0).windows
    for now in range(2, 62, 2):
        made = decide(IDLE, windows, bounded, ONE, float(now))
        windows = made.windows
    assert made.pools["prefill"].desired == 0


def test_remaining_seconds_of_a_larger_wish_are_reported():
    windows = {**QUIET, "prefill": Window((KeptSize(1900.0, 5),), 1050.0)}
    made = _decide(IDLE, {"prefill": 5, "decode": 1}, windows, 1060.0)["prefill"]
    assert made.change.endswith("shrinks in 840 s, if at most 0 are needed until then")


def test_a_need_of_the_last_minute_must_last_before_a_pool_grows():
    """It sinks once, to 2.5 workers at second 20. A queue of 100 s of work grows the pool immediately."""
    busy, less, behind = (_queued(queue, arriving(n, 2000)) for queue, n in ((0, 600), (0, 450), (800_000, 600)))
    windows, seen = decide(IDLE, QUIET, spec(), ONE, 1.0).windows, []
    blind = dataclasses.replace(busy, traffic=None)  # a poll that fails tells nothing of the need
    for now in range(2, 58, 2):
        known = {20: less, 30: blind}.get(now, busy)
        made = decide(known, windows, spec(), {"prefill": 2, "decode": 1}, float(now))
        seen.append((made.pools["prefill"].desired, made.pools["prefill"].reason))
        if now == 2:
            assert "have been needed for 30 s: now 3.33" in made.pools["prefill"].change
            assert _decide(behind, windows=windows, now=2.0)["prefill"].reason == BACKLOG
        windows = made.windows
    waiting = [*[(2, decision.CONFIRMING)] * 14, (2, decision.METRICS_MISSING)]
    assert seen == [*waiting, *[(3, ARRIVALS)] * 9, *[(4, ARRIVALS)] * 4]


@pytest.mark.parametrize("now", [2.0, 1000.0])
def test_a_first_sample_after_silence_or_a_gap_is_no_need_that_has_lasted(now):
    """Six workers' arrivals, of which two are there."""
    windows = {**QUIET, "prefill": Window((KeptSize(0.0, 0),), 0.0)}
    made = decide(_queued(0, arriving(1080, 2000)), windows, spec(), {"prefill": 2, "decode": 1}, now)
    assert (made.pools["prefill"].desired, made.pools["prefill"].reason) == (2, decision.CONFIRMING)
    assert made.windows["prefill"].confirmed == 2


def test_an_unconfirmed_need_is_capped_only_beyond_the_bound():
    windows = decide(IDLE, QUIET, spec(), ONE, 1.0).windows
    busy, most = _queued(0, arriving(600, 2000)), {"prefill": 2, "decode": 1}
    made = _decide(busy, most, windows, 2.0, scaling={"prefill": {"min": 1, "max": 2}})["prefill"]
    assert (made.reason, made.capped_by) == (ARRIVALS, "scaling.prefill.max")
    made = _decide(busy, ONE, windows, 2.0, scaling={"prefill": {"min": 1, "max": 9}})["prefill"]
    assert (made.reason, made.capped_by) == (decision.CONFIRMING, "")


def test_an_unconfirmed_peak_does_not_tell_when_a_pool_shrinks():
    windows = {**QUIET, "prefill": Window((KeptSize(302.0, 7), KeptSize(500.0, 3)), 200.0)}
    made = _decide(IDLE, {"prefill": 3, "decode": 1}, windows, 202.0)["prefill"]
    assert made.change.endswith("shrinks in 298 s, if at most 0 are needed until then")


def test_a_gap_without_decisions_begins_the_window_anew():
    """An operator that was away does not know what would have been desired."""
    windows = {"prefill": Window().add(0.0, [KeptSize(900.0, 1)], 1, 1, idle=True)}
    assert decide(IDLE, windows, spec(), {"prefill": 5, "decode": 1}, 1000.0).pools["prefill"].desired == 5


def test_a_pool_beyond_its_bound_shrinks_though_signals_are_missing_and_says_why():
    silent, sizes = Signals((prefiller(sample_age=None), decoder()), NO_TRAFFIC), {"prefill": 4, "decode": 1}
    made = _decide(silent, sizes, scaling={"prefill": {"min": 1, "max": 2}})["prefill"]
    assert (made.desired, made.reason, made.capped_by) == (2, decision.WITHIN_BOUNDS, "scaling.prefill.max")


def test_old_reports_of_a_worker_do_not_count():
    """Its queue, sequences, context and blocks are left out: ten rows run on the other worker."""
    made = _decide(Signals((prefiller(sample_age=11.0), decoder()), NO_TRAFFIC), {"prefill": 3, "decode": 1})["prefill"]
    assert (made.desired, made.reason) == (3, decision.METRICS_MISSING)
    assert "prefill-0" in made.missing[0]
    old = decoder("decode-1", sample_age=11.0, running=50, context_tokens=900_000, blocks=Blocks(0, 0, 1000))
    made = _decide(_decoding(NO_TRAFFIC, old, running=10, context_tokens=1000, blocks=Blocks(930, 0, 70)))["decode"]
    numbers = _term(made, STEP_TIME).numbers
    assert (numbers["rows"], numbers["context"], _term(made, KV_BLOCKS).numbers["used"]) == (10.0, 1000.0, 70)


def test_what_is_known_may_still_grow_a_pool_while_something_is_missing():
    made = _decide(_queued(0, arriving(600, 2000), prefiller("prefill-1", sample_age=None)))["prefill"]
    assert (made.desired, made.missing) == (4, ("the queue of prefill-1",))


def test_without_any_request_the_last_second_of_traffic_is_zero_and_not_missing():
    made = _decide(_queued(0, Traffic(60.0, (), 10.0, ())), {"prefill": 3, "decode": 3})
    assert {pool: each.desired for pool, each in made.items()} == {"prefill": 0, "decode": 1}
