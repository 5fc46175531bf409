"""Properties of every decision, whatever is known."""

import dataclasses
import math

import budget
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from known_signals import changed, signals, spec, traffics

from legato_operator.autoscaler.decide import decide
from legato_operator.autoscaler.decision import SAMPLED
from legato_operator.autoscaler.equation import evaluate
from legato_operator.autoscaler.prefill import LATE_EQUATION
from legato_operator.autoscaler.signals import PrefillCost, PromptLengths, Signals
from legato_operator.autoscaler.window import KeptSize, Window

SPEC = spec()
EMPTY = spec(scaling={"decode": {"min": 0, "max": 100}})  # either pool may be
POOLS = ("prefill", "decode")
many = settings(max_examples=budget.times(20), deadline=None)
sizes = st.fixed_dictionaries({pool: st.integers(0, 50) for pool in POOLS})


def _wishes(known, current, windows=None, now=0.0):
    made = decide(known, windows or {}, SPEC, current, now)
    return {pool: each.desired for pool, each in made.pools.items()}


def _grown(known: Signals, factor: int) -> Signals:

    def more(lengths):
        return tuple(PromptLengths(each.least, each.requests * factor, each.tokens * factor) for each in lengths)

    traffic = known.traffic
    prompts = {name: more(getattr(traffic, name)) for name in ("arrivals", "recent", "newest")}
    held = {name: getattr(traffic, name) * factor for name in ("queued", "queued_tokens", "queued_prompt_tokens")}
    return dataclasses.replace(known, traffic=dataclasses.replace(traffic, **prompts, **held))


@many
@given(signals(), sizes, st.lists(st.integers(0, 60), min_size=1, max_size=12))
def test_a_pool_shrinks_only_to_the_highest_wish_of_the_whole_window(known, current, earlier):
    """And to nothing less than what is needed now, but for needs of a sample, which must last."""
    window = Window()
    for number, wish in enumerate(earlier):
        at = 10.0 * number
        window = window.add(at, [KeptSize(at + SPEC.scaling.scale_down_stabilization, wish)], 10_000, 0, idle=False)
    made = decide(known, dict.fromkeys(POOLS, window), SPEC, current, 10.0 * len(earlier))
    for pool, each in made.pools.items():
        assert each.desired >= min(current[pool], max(earlier)), pool
        sure = max((term.known for term in each.terms if term.reason not in SAMPLED), default=0.0)
        assert each.desired >= min(sure - 1e-6, 10_000)


@many
@given(signals(), sizes)
def test_after_a_restart_nothing_shrinks(known, current):
    made = _wishes(known, current)
    assert all(made[pool] >= current[pool] for pool in POOLS)


@many
@given(signals(), st.integers(1, 40))
def test_one_worker_less_never_crosses_the_threshold_for_growing(known, current):
    """With a window that allows everything, what was decided is decided again at the new size."""
    window = dict.fromkeys(POOLS, Window((KeptSize(0.0, 0),), 0.0))
    first = _wishes(known, dict.fromkeys(POOLS, current), window, 1.0)
    again = decide(known, window, SPEC, first, 1.0)
    assert not any(each.changes for each in again.pools.values())


@many
@given(signals(), sizes, st.sampled_from(("traffic", "prefill", "decode")))
def test_what_is_missing_never_lowers_a_wish(known, current, missing):
    window = dict.fromkeys(POOLS, Window((KeptSize(0.0, 0),), 0.0))
    if missing == "traffic":
        silent = dataclasses.replace(known, traffic=None)
        pools = POOLS
    else:
        silent, pools = changed(known, missing, sample_age=None), (missing,)
    made = _wishes(silent, current, window, 1.0)
    assert all(made[pool] >= current[pool] for pool in pools)


@many
@given(signals(), sizes, st.integers(2, 9))
def test_more_load_never_lowers_a_wish(known, current, factor):
    before, after = _wishes(known, current), _wishes(_grown(known, factor), current)
    assert all(after[pool] >= before[pool] for pool in POOLS)


def _loaded(worker, tokens, blocks):
    more = {"queue_tokens": worker.queue_tokens + tokens}
    if worker.blocks is not None:
        full, moved = worker.blocks, min(blocks, worker.blocks.free)
        more["running"] = worker.running and worker.running + blocks
        more["blocks"] = dataclasses.replace(
            full, free=full.free - moved, used=full.used + moved, pending=full.pending + blocks
        )
    return dataclasses.replace(worker, **more)


@many
@given(signals(), sizes, st.integers(0, 100_000), st.integers(0, 500))
def test_longer_queues_and_fuller_caches_never_lower_a_wish(known, current, tokens, blocks):
    workers = [_loaded(worker, tokens, blocks) for worker in known.workers]
    loaded = dataclasses.replace(known, workers=tuple(workers))
    before, after = _wishes(known, current), _wishes(loaded, current)
    assert all(after[pool] >= before[pool] for pool in POOLS)


@many
@given(signals(), sizes, st.sampled_from((2, 4, 8)))
def test_workers_so_many_times_as_fast_with_prompts_so_many_times_as_long_need_the_same(known, current, factor):
    plain = _scaled(known, 1)
    # Where a bucket begins is a whole number of tokens: costs right at its edge may fall on either side.
    assume(not _at_the_edge(plain))
    assert _wishes(_scaled(known, factor), current)["prefill"] == _wishes(plain, current)["prefill"]


def _scaled(known: Signals, factor: int) -> Signals:
    """With prompts that many times as long, and a cost for each token of prefill that is smaller by the factor."""

    def longer(lengths):
        return tuple(PromptLengths(each.least * factor, each.requests, each.tokens * factor) for each in lengths)

    def faster(worker):
        cost = worker.prefill_cost and PrefillCost(worker.prefill_cost.per_token / factor)
        return dataclasses.replace(worker, queue_tokens=worker.queue_tokens * factor, prefill_cost=cost)

    traffic = known.traffic
    prompts = {name: longer(getattr(traffic, name)) for name in ("arrivals", "recent", "newest", "waiting")}
    held = traffic.queued_tokens * factor
    traffic = dataclasses.replace(traffic, **prompts, queued_tokens=held, head_wait={})
    return dataclasses.replace(known, workers=tuple(map(faster, known.workers)), traffic=traffic)


def _at_the_edge(known: Signals) -> bool:
    costs = [worker.prefill_cost.per_token for worker in known.workers if worker.prefill_cost is not None]
    edges = [1 << power for power in range(3, 22)]
    return any(math.isclose(cost * edge, SPEC.slo.ttft, rel_tol=1e-6) for cost in costs for edge in edges)


@many
@given(signals(), sizes)
def test_each_term_follows_from_the_numbers_it_tells(known, current):
    made = decide(known, {}, SPEC, current, 0.0)
    for each in made.pools.values():
        assert each.needed == math.ceil(max(term.known for term in each.terms) - 1e-6)
        for term in each.terms:
            if term.equation == LATE_EQUATION:
                assert evaluate(term.equation, term.numbers) <= term.numbers["late"]
            elif term.workers is not None:
                assert evaluate(term.equation, term.numbers) == term.workers


@many
@given(traffics(), sizes)
def test_without_a_worker_prompts_that_arrive_keep_the_pool_as_it_is(traffic, current):
    assume(traffic.arrivals)
    made = _wishes(Signals((), traffic), current, dict.fromkeys(POOLS, Window((KeptSize(0.0, 0),), 0.0)), 1.0)
    assert made["prefill"] >= current["prefill"]


@many
@given(traffics())
def test_an_empty_service_gets_a_decode_worker_for_any_request_and_nothing_without(traffic):
    made = decide(Signals((), traffic), {}, EMPTY, {"prefill": 0, "decode": 0}, 0.0).pools
    asked = bool(traffic.queued or any(each.requests for each in traffic.recent))
    assert {pool: each.desired for pool, each in made.items()} == {"decode": int(asked), "prefill": 0}


@many
@given(signals(), sizes, st.dictionaries(st.sampled_from(POOLS), st.booleans()))
def test_prefill_workers_never_stay_without_one_that_decodes(known, current, silent):
    """Whatever is known, and when everything was idle for long."""
    for pool, cold in silent.items():
        known = changed(known, pool, sample_age=None) if cold else known
    windows = dict.fromkeys(POOLS, Window((KeptSize(0.0, 0),), 0.0))
    wishes = {pool: each.desired for pool, each in decide(known, windows, EMPTY, current, 1.0).pools.items()}
    assert wishes["decode"] >= min(current["decode"], 1) or not wishes["prefill"]
