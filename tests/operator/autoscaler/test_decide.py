"""What a decision is, by example, with numbers that can be recomputed by hand."""

import dataclasses

import pytest
from known_signals import NO_TRAFFIC, arriving, decoder, prefiller, prompts, spec

from legato_operator.autoscaler import decision
from legato_operator.autoscaler.decide import decide
from legato_operator.autoscaler.signals import Blocks, DecodeCost, OutputLengths, Signals, Traffic
from legato_operator.autoscaler.window import Window

ONE = {"prefill": 1, "decode": 1}
QUIET = {pool: Window(((0.0, 0),)) for pool in ONE}  # nothing was wished lately


def _decide(known, current=ONE, windows=QUIET, now=1.0, **parts):
    return decide(known, windows, spec(**parts), current, now).pools


def _term(made, reason):
    return next(term for term in made.terms if term.reason == reason)


def test_prefill_follows_what_arrives_before_any_queue_builds_up():
    """600 prompts of 2,000 tokens a minute are 20,000 tokens/s: 20,000 / (8,000 x 0.75) = 3.33 workers."""
    made = _decide(Signals((prefiller(), decoder()), arriving(600, 2000)))["prefill"]
    assert _term(made, decision.ARRIVALS).workers == pytest.approx(20_000 / 8_000 / 0.75)
    assert made.wish == 4


def test_floating_point_adds_no_worker():
    """7,200 prompts of 350 tokens a minute need seven, and 7.000000000000001 as reckoned."""
    made = _decide(Signals((prefiller(), decoder()), arriving(7200, 350)))["prefill"]
    assert _term(made, decision.ARRIVALS).workers > 7
    assert made.wish == 7


def test_a_queue_is_added_as_far_as_it_is_left_when_a_worker_started_now_would_serve():
    """4,000 tokens/s need 0.67; 800,000 queued ones are 100 s of work, of which 70 s are left in 60 s."""
    known = Signals((prefiller(queue_tokens=800_000), decoder()), arriving(120, 2000))
    made = _decide(known)["prefill"]
    assert _term(made, decision.BACKLOG).workers == pytest.approx(4 / 6 + (70 - 0.872 * 4 / 6) / 60, rel=1e-3)
    assert (made.wish, made.reason) == (2, decision.BACKLOG)


def test_a_backlog_counts_what_the_last_seconds_bring_if_not_by_chance():
    """200 prompts of 0.25 s in 10 s: 50 s of work, of which half a deviation, the root of 200 x 0.25 ^ 2, is chance."""
    traffic = dataclasses.replace(arriving(60, 2000), recent=prompts(200, 2000))
    made = _decide(Signals((prefiller(queue_tokens=800_000), decoder()), traffic))["prefill"]
    numbers = _term(made, decision.BACKLOG).numbers
    assert numbers["arrivals"] == pytest.approx((50 - 0.5 * 12.5**0.5) / 10)


def test_a_queue_that_ready_workers_do_within_the_objective_is_noise():
    made = _decide(Signals((prefiller(queue_tokens=4_000), decoder()), arriving(120, 2000)))["prefill"]
    assert decision.BACKLOG not in {term.reason for term in made.terms}


def test_workers_that_start_count_for_what_they_will_do_meanwhile():
    """So a pod that cannot be scheduled asks for no further one."""
    queued = Signals((prefiller(queue_tokens=800_000), decoder()), arriving(120, 2000))
    starting = prefiller("prefill-1", ready=False, age=50.0, start_seconds=None, sample_age=None)
    more = dataclasses.replace(queued, workers=(*queued.workers, starting))
    before, after = _decide(queued)["prefill"], _decide(more)["prefill"]
    assert _term(after, decision.BACKLOG).workers < _term(before, decision.BACKLOG).workers


def test_a_prompt_that_alone_exceeds_the_objective_starts_no_worker():
    """100,000 tokens take 12.5 s where 1 s is the objective: counted apart."""
    traffic = arriving(1, 100_000, waiting=prompts(1, 100_000))
    made = _decide(Signals((prefiller(queue_tokens=100_000), decoder()), traffic))["prefill"]
    assert (made.wish, _term(made, decision.ARRIVALS).numbers["oversizedTokens"]) == (1, 100_000)


def test_nor_does_it_when_the_operator_has_only_just_begun_to_look():
    """12.5 s of work within the first 4 s: one of a kind that lasts for a minute, as far as is known."""
    traffic = dataclasses.replace(arriving(1, 100_000, waiting=prompts(1, 100_000)), seconds=4.0, recent_seconds=4.0)
    made = _decide(Signals((prefiller(queue_tokens=100_000), decoder()), traffic))["prefill"]
    assert made.wish == 1


@pytest.mark.parametrize("seconds", [2.0, 10.0])
def test_a_prompt_or_two_in_a_young_window_are_no_rate(seconds):
    """0.9 s of work each: a rate of 0.45 workers, if two seconds told one."""
    traffic = Traffic(seconds, prompts(1, 7200), seconds, prompts(1, 7200))
    made = _decide(Signals((prefiller(), decoder()), traffic))["prefill"]
    assert (made.wish, made.needed) == (1, 1)


def test_many_in_a_young_window_are_one_less_what_may_be_chance():
    """100 prompts of 0.25 s within 10 s: 25 s of work, give or take sqrt(100) x 0.25 s."""
    traffic = Traffic(10.0, prompts(100, 2000), 10.0, prompts(100, 2000))
    made = _decide(Signals((prefiller(), decoder()), traffic))["prefill"]
    assert _term(made, decision.ARRIVALS).workers == pytest.approx((25 - 2.5) / 10 / 0.75)
    assert made.wish == 3


def test_what_came_in_the_last_seconds_counts_for_a_backlog_less_what_may_be_chance():
    """26 prompts of 0.25 s in 4 s are 1.3 workers' work more or less, of which 10 s tell 0.65."""
    traffic = Traffic(60.0, prompts(26, 2000), 10.0, prompts(26, 2000), newest_seconds=4.0, newest=prompts(26, 2000))
    made = _decide(Signals((prefiller(queue_tokens=20_000), decoder()), traffic))["prefill"]
    load = _term(made, decision.BACKLOG).numbers["load"]
    assert load == pytest.approx((26 - 26**0.5) * 0.25 / 4)


def test_what_waits_behind_one_counts_however_far_it_is_and_whoever_else_drains_with_one():
    """Three of 100,000 tokens are half done, two of them on workers that drain; 20 of 2,000 wait behind the third."""
    waiting = (*prompts(20, 2000), *prompts(3, 100_000))
    draining = [prefiller(f"prefill-{n}", queue_tokens=50_000, draining=True) for n in (1, 2)]
    workers = (prefiller(queue_tokens=90_000), *draining, decoder())
    made = _decide(Signals(workers, arriving(60, 2000, waiting=waiting)))["prefill"]
    assert _term(made, decision.BACKLOG).numbers["backlogTokens"] == 40_000


def test_many_of_them_are_worked_off_all_the_same():
    """24 a minute are 5 workers' work: without them the queue would grow for ever."""
    made = _decide(Signals((prefiller(), decoder()), arriving(24, 100_000)))["prefill"]
    assert _term(made, decision.ARRIVALS).workers == pytest.approx(5 - 1)


def test_a_queue_that_waits_for_decode_room_scales_decode_and_not_prefill():
    held = {"held": 50, "held_tokens": 4_000_000, "held_prompt_tokens": 400_000, "head_wait": {"decode_room": 2.0}}
    full = decoder(blocks=Blocks(20, 0, 980), running=20)
    made = _decide(Signals((prefiller(), full), arriving(120, 2000, **held)))
    assert made["prefill"].wish == 1
    assert made["decode"].wish == 29  # (980 + 25,000 + 0) / (1,000 x 0.9) = 28.9


@pytest.mark.parametrize(("size", "wish"), [(16, 29), (32, 15)])
def test_what_is_held_is_counted_in_the_blocks_that_workers_have(size, wish):
    """Whatever the manifest says that they will have."""
    held = {"held": 50, "held_tokens": 4_000_000, "held_prompt_tokens": 400_000, "head_wait": {"decode_room": 2.0}}
    full = decoder(blocks=Blocks(20, 0, 980, size=size), running=20)
    assert _decide(Signals((prefiller(), full), arriving(120, 2000, **held)))["decode"].wish == wish


def test_blocks_of_two_sizes_are_added_by_their_tokens():
    """While `blockSize` changes: 900 of 64 tokens are 3,600 of 16, of which four workers have 1,000 each."""
    old = [decoder(f"decode-{i}", blocks=Blocks(1000, 0, 0), running=1) for i in range(3)]
    new = decoder("decode-3", blocks=Blocks(100, 0, 900, size=64), running=1)
    terms = _decide(Signals((prefiller(), *old, new), arriving(0, 2000)))["decode"].terms
    (told,) = [term for term in terms if term.reason == decision.KV_BLOCKS]
    assert (told.numbers["used"], told.numbers["capacity"]) == (3600, 1000)


def test_a_queue_that_waits_for_prefill_does_not_scale_decode():
    held = {"held": 50, "held_tokens": 1_600_000, "head_wait": {"prefill": 2.0}}
    made = _decide(Signals((prefiller(), decoder()), arriving(120, 2000, **held)))
    assert made["decode"].wish == 1
    assert made["prefill"].wish > 1


@pytest.mark.parametrize(("output", "blocks"), [(None, 0), (120, 2000), (600, 10_000), (6000, 10_000)])
def test_held_prompts_that_wait_for_prefill_count_for_as_long_as_they_decode(output, blocks):
    """160,000 tokens in 10,000 blocks: 120 tokens at 0.1 s are a fifth of the 60 s in which prefill takes them on."""
    held = {"held": 50, "held_tokens": 160_000, "held_prompt_tokens": 160_000, "head_wait": {"prefill": 2.0}}
    traffic = arriving(120, 2000, **held, output=None if output is None else OutputLengths(output, 0))
    made = _decide(Signals((prefiller(), decoder()), traffic))["decode"]
    assert _term(made, decision.KV_BLOCKS).numbers["held"] == blocks
    assert _term(made, decision.SLOTS).numbers["sequences"] == pytest.approx(50 * blocks / 10_000)


def _overrun(*, prefillers=1, held=100, outputs=200, **parts):
    """10 requests/s of 0.25 s each, far more than is worked off."""
    waiting = {"held": held, "held_tokens": 200_000, "held_prompt_tokens": 200_000, "head_wait": {"prefill": 2.0}}
    traffic = arriving(600, 2000, **waiting, output=OutputLengths(outputs, 0))
    workers = [prefiller(f"prefill-{i}", queue_tokens=800_000 // prefillers) for i in range(prefillers)]
    made = _decide(Signals((*workers, decoder()), traffic), {"prefill": prefillers, "decode": 1}, **parts)
    return _term(made["decode"], decision.SLOTS).numbers["sequences"], made["prefill"].wish


def test_decode_workers_for_what_added_prefill_workers_will_send_are_wished_with_them():
    """Each of the six sends 4 requests/s, which stay for 2 s of queueing and 200 steps of a full worker, of 74 ms."""
    sequences, prefillers = _overrun()
    assert prefillers == 7
    assert sequences == pytest.approx(6 * 4 * (2 + 200 * 0.074))


def test_no_more_are_wished_than_will_be_held_until_they_serve():
    """100 now, and 10 a second for the 60 s that a worker takes to start."""
    assert _overrun(outputs=100_000)[0] == pytest.approx(100 + 10 * 60)


def test_nor_for_prefill_workers_that_their_bound_does_not_allow():
    assert _overrun(scaling={"prefill": {"max": 3}})[0] == pytest.approx(2 * 4 * (2 + 200 * 0.074))


def test_what_prefill_workers_send_that_serve_already_is_there():
    """A third of the held ones decode at once: 200 tokens at 0.1 s, of the 60 s in which they are let through."""
    sequences, prefillers = _overrun(prefillers=9)
    assert prefillers <= 9
    assert sequences == pytest.approx(100 / 3)


def test_where_workers_start_at_once_all_held_prompts_count():
    traffic = arriving(120, 2000, held=50, held_prompt_tokens=160_000)
    made = _decide(Signals((prefiller(), decoder(start_seconds=0.0)), traffic))["decode"]
    assert _term(made, decision.KV_BLOCKS).numbers["held"] == 10_000


def test_one_hot_worker_in_a_roomy_pool_is_no_reason_to_grow():
    hot = decoder(blocks=Blocks(0, 0, 1000), running=10)
    cold = [decoder(f"decode-{i}", blocks=Blocks(900, 0, 100), running=1) for i in range(1, 4)]
    made = _decide(Signals((prefiller(), hot, *cold), NO_TRAFFIC), {"prefill": 1, "decode": 4})["decode"]
    assert made.wish == 2  # (1,000 + 3 x 100) / 900


def test_decode_counts_what_is_promised_and_the_spread_of_output_lengths():
    """(100 + 200 + 600 + 1.645 x 160 / 16 x 10) / 900 for 100 sequences: 1.18."""
    blocks = Blocks(900, 0, 100, pending=200, growth=600)
    traffic = arriving(60, 100, output=OutputLengths(200, 160))
    worker = decoder(blocks=blocks, running=60, waiting=40, slots=1000)
    made = _decide(Signals((prefiller(), worker), traffic))["decode"]
    assert _term(made, decision.KV_BLOCKS).workers == pytest.approx((900 + 164.5) / 900)


def test_decode_grows_when_a_step_would_exceed_the_objective():
    """100 rows at 1 ms beside 10 ms: 100 / (0.9 x 100 - 10) = 1.25 workers."""
    made = _decide(Signals((prefiller(), decoder(running=100, slots=1000)), NO_TRAFFIC))["decode"]
    assert (_term(made, decision.STEP_TIME).workers, made.wish) == (pytest.approx(1.25), 2)


@pytest.mark.parametrize("fixed", [0.9 * 0.1, 0.2])
def test_an_objective_below_an_empty_step_scales_nothing(fixed):
    worker = decoder(running=100, slots=1000, decode_cost=DecodeCost(fixed, 0.001))
    assert _decide(Signals((prefiller(), worker), NO_TRAFFIC))["decode"].wish == 1


def test_sequences_of_a_draining_worker_count_and_its_room_does_not():
    leaving = decoder("decode-1", draining=True, blocks=Blocks(0, 0, 1000), running=10)
    made = _decide(Signals((prefiller(), decoder(), leaving), NO_TRAFFIC))["decode"]
    assert _term(made, decision.KV_BLOCKS).workers == pytest.approx(1000 / 900)


def test_unified_workers_do_both():
    """0.67 for prompts and 0.5 for steps are more than one worker."""
    worker = decoder(prefill_cost=prefiller().prefill_cost, running=40, slots=1000)
    made = decide(
        Signals((worker,), arriving(120, 2000)), {}, spec(scaling={"prefill": {"max": 0}}), {"decode": 1}, 0.0
    ).pools
    assert list(made) == ["decode"]
    assert made["decode"].wish == 2


def test_unified_workers_add_up_time_and_not_blocks():
    """0.67 for prompts and 0.89 for blocks: prompts take none of the steps that nothing decodes in."""
    worker = decoder(prefill_cost=prefiller().prefill_cost, blocks=Blocks(200, 0, 800))
    known, unified = Signals((worker,), arriving(120, 2000)), spec(scaling={"prefill": {"max": 0}})
    made = decide(known, QUIET, unified, {"decode": 1}, 1.0).pools["decode"]
    assert (made.wish, decision.PREFILL_AND_DECODE in {term.reason for term in made.terms}) == (1, False)


@pytest.mark.parametrize(("running", "traffic"), [(40, NO_TRAFFIC), (0, arriving(120, 2000))])
def test_of_unified_workers_that_do_one_thing_no_sum_is_told(running, traffic):
    worker = decoder(prefill_cost=prefiller().prefill_cost, running=running, slots=1000)
    unified = spec(scaling={"prefill": {"max": 0}})
    terms = decide(Signals((worker,), traffic), QUIET, unified, {"decode": 1}, 1.0).pools["decode"].terms
    assert decision.PREFILL_AND_DECODE not in {term.reason for term in terms}


def test_bounds_cap_the_wish_and_are_named():
    made = _decide(Signals((prefiller(), decoder()), arriving(6000, 2000)), scaling={"prefill": {"min": 1, "max": 3}})
    assert (made["prefill"].wish, made["prefill"].capped_by) == (3, "scaling.prefill.max")
    assert "scaling.prefill.max" in made["prefill"].change


def test_a_wish_goes_down_when_its_maximum_is_old_and_not_before():
    idle = Signals((prefiller(), decoder()), NO_TRAFFIC)
    windows, size = {}, {"prefill": 5, "decode": 1}
    for now in range(0, 900, 20):
        made = decide(idle, windows, spec(), size, float(now))
        windows = made.windows
        assert made.pools["prefill"].wish == 5
    last = decide(idle, windows, spec(), size, 900.0).pools["prefill"]
    assert (last.wish, last.reason) == (0, decision.IDLE)


@pytest.mark.parametrize(
    ("wished", "told"), [(3, (3, decision.STABILIZING, "")), (1, (1, decision.WITHIN_BOUNDS, "scaling.decode.min"))]
)
def test_a_bound_is_the_reason_only_of_the_size_that_it_sets(wished, told):
    """At rest nothing is needed, and one worker must stay; that three do is due to what was wished lately."""
    windows = {**QUIET, "decode": Window(((0.0, wished),))}
    made = _decide(Signals((prefiller(), decoder()), NO_TRAFFIC), {"prefill": 1, "decode": 4}, windows)["decode"]
    assert (made.wish, made.reason, made.capped_by) == told


def test_a_size_set_by_hand_is_not_undone_by_what_was_wished_before():
    """Five were wished lately, and two are there: whoever set them has seen that."""
    windows = {**QUIET, "prefill": Window(((0.0, 5),))}
    made = _decide(Signals((prefiller(), decoder()), NO_TRAFFIC), {"prefill": 2, "decode": 1}, windows)["prefill"]
    assert (made.wish, made.highest) == (2, 5)


def test_what_a_bound_did_not_allow_does_not_keep_a_pool():
    """Five were needed where one may be: it goes after `idleAfter`, and not by the window of five."""
    one, busy = {"prefill": 1, "decode": 1}, Signals((prefiller(), decoder()), arriving(800, 2000))
    known = spec(scaling={"prefill": {"min": 0, "max": 1}, "idleAfter": "1m"})
    windows = decide(busy, {}, known, one, 0.0).windows
    for now in range(2, 62, 2):
        made = decide(Signals((prefiller(), decoder()), NO_TRAFFIC), windows, known, one, float(now))
        windows = made.windows
    assert made.pools["prefill"].wish == 0


def test_how_long_a_larger_wish_still_counts_is_told():
    windows = {**QUIET, "prefill": Window(((1000.0, 5), (1050.0, 0)))}
    made = _decide(Signals((prefiller(), decoder()), NO_TRAFFIC), {"prefill": 5, "decode": 1}, windows, 1060.0)
    assert made["prefill"].change.endswith("shrinks in 840 s, if no more than 0 are needed until then")


def test_a_pool_beyond_its_bound_shrinks_though_signals_are_missing_and_says_why():
    """The bound was lowered."""
    silent, sizes = Signals((prefiller(sample_age=None), decoder()), NO_TRAFFIC), {"prefill": 4, "decode": 1}
    made = _decide(silent, sizes, scaling={"prefill": {"min": 1, "max": 2}})["prefill"]
    assert (made.wish, made.reason, made.capped_by) == (2, decision.WITHIN_BOUNDS, "scaling.prefill.max")


def test_a_gap_without_decisions_begins_the_window_anew():
    """An operator that was away does not know what would have been wished."""
    idle = Signals((prefiller(), decoder()), NO_TRAFFIC)
    windows = {"prefill": Window().add(0.0, 1, 1, 900.0, idle=True)}
    assert decide(idle, windows, spec(), {"prefill": 5, "decode": 1}, 1000.0).pools["prefill"].wish == 5


def test_what_a_worker_told_long_ago_is_not_known():
    old = prefiller(sample_age=11.0)
    made = _decide(Signals((old, decoder()), NO_TRAFFIC), {"prefill": 3, "decode": 1})["prefill"]
    assert (made.wish, made.reason) == (3, decision.METRICS_MISSING)
    assert "prefill-0" in made.missing[0]


def test_neither_is_what_its_sequences_had_of_context_and_blocks():
    """Ten rows run on the other worker, with 1,000 tokens in 70 blocks."""
    told = decoder(running=10, context_tokens=1000, blocks=Blocks(930, 0, 70))
    old = decoder("decode-1", sample_age=11.0, running=50, context_tokens=900_000, blocks=Blocks(0, 0, 1000))
    made = _decide(Signals((prefiller(), told, old), NO_TRAFFIC))["decode"]
    numbers = _term(made, decision.STEP_TIME).numbers
    assert (numbers["rows"], numbers["context"]) == (10.0, 1000.0)
    assert _term(made, decision.KV_BLOCKS).numbers["used"] == 70


def test_what_is_known_may_still_grow_a_pool_while_something_is_missing():
    silent = prefiller("prefill-1", sample_age=None)
    made = _decide(Signals((prefiller(), silent, decoder()), arriving(600, 2000)))["prefill"]
    assert (made.wish, made.missing) == (4, ("the queue of prefill-1",))


def test_few_large_requests_and_many_small_ones_of_equal_work_need_much_the_same():
    known = [
        Signals((prefiller(), decoder()), arriving(count, tokens)) for count, tokens in ((600, 6000), (36_000, 100))
    ]
    few, many = (_decide(each)["prefill"] for each in known)
    assert few.terms[0].workers == pytest.approx(many.terms[0].workers)
    assert many.wish <= few.wish <= many.wish + 4  # a few large ones meet more often


def test_without_any_request_the_last_second_of_traffic_is_zero_and_not_missing():
    made = _decide(Signals((prefiller(), decoder()), Traffic(60.0, (), 10.0, ())), {"prefill": 3, "decode": 3})
    assert {pool: each.wish for pool, each in made.items()} == {"prefill": 0, "decode": 1}
