"""The routing decision over a snapshot."""

from dataclasses import replace
from typing import Any

import pytest
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct

from legato_gateway.routing import filters, scorers
from legato_gateway.routing.choose import NoRoute, Policy, Route, choose
from legato_gateway.routing.filters import Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.scorers import Objectives, Weights
from legato_gateway.routing.tiers import holder
from legato_protocol.wire.kv_events import HOST
from legato_protocol.wire.load import DecodeCoefficients, PrefillCoefficients

BLOCK = 16
ALWAYS_SPLIT = Policy(local_prefill_below_tokens=0)


ROLES: Any = {"p": "prefill", "d": "decode", "u": "unified"}


def worker(name: str, **overrides: Any) -> WorkerView:
    view = WorkerView(name, ROLES[name[0]], "e", "r1", BLOCK, 1000, 8000, free_blocks=1000, prefill_rate=1000.0)
    return replace(view, **{"address": name.encode(), **overrides})


def fleet(*workers: WorkerView) -> FleetSnapshot:
    return FleetSnapshot(workers)


def named(snapshot: FleetSnapshot, name: str) -> WorkerView:
    return next(worker for worker in snapshot.workers if worker.name == name)


def need(tokens: int = 320, **overrides: Any) -> Need:
    return Need(**{"id": "r", "tokens": tokens, "growth": 100, **overrides})


def routed(
    wanted: Need, snapshot: FleetSnapshot, policy: Policy = ALWAYS_SPLIT, predicted: Any = None, **matches: int
) -> Route:
    route = choose(wanted, snapshot, matches, policy, predicted or {})
    assert isinstance(route, Route), route
    return route


P, D = worker("p0"), worker("d0")


def test_prefill_and_decode_are_separate_and_the_route_explains_it():
    route = routed(need(), fleet(P, D), p0=4, d0=2)
    assert (route.prefill, route.decode, route.cached) == ("p0", "d0", {"p0": 64, "d0": 32})
    assert "p0" in route.why
    assert "64 tokens cached" in route.why


def test_a_predicted_prefix_counts_only_in_the_cost_of_a_prefill():
    route = routed(need(), fleet(P, worker("p1"), D), predicted={"p1": 10})
    assert (route.prefill, route.cached["p1"], route.to_compute) == ("p1", 0, 160)
    tight = fleet(P, worker("p1"), worker("d0", free_blocks=19))
    assert isinstance(choose(need(), tight, {}, ALWAYS_SPLIT, {"d0": 19}), NoRoute), "no room is predicted"
    local = routed(need(), fleet(P, D), Policy(64), {"d0": 19})
    assert local.prefill == "p0", "what is not there yet is not a short prompt"
    assert routed(need(), fleet(worker("u0"), worker("u1")), Policy(), {"u1": 10}).decode == "u1"
    assert routed(need(), fleet(P, D), predicted={"p0": 5}, p0=10).to_compute == 160, "the cache has more"


def test_cached_tokens_are_attended_to():
    cost = PrefillCoefficients(0.5, 0.0, 1e-6, 100)
    assert scorers.compute_seconds(cost, 1000, 250) == pytest.approx(3 * 0.5 + 1e-6 * 250 * (750 + 125))


def test_what_this_gateway_has_just_sent_counts():
    """Requests of one moment, before any worker could report, spread over the workers."""
    pending = dict.fromkeys(["p0", "p1", "p2", "d0", "d1"], 0)
    for i in range(30):
        views = [worker(name, pending_sequences=n, pending_tokens=n * 320) for name, n in pending.items()]
        route = routed(need(id=f"r{i}"), fleet(*views))
        pending[route.prefill or ""] += 1
        pending[route.decode] += 1
    assert [pending[name] for name in ("p0", "p1", "p2")] == [10, 10, 10]
    assert pending["d0"] == pending["d1"] == 15


def test_equal_workers_are_chosen_by_request_and_always_alike():
    snapshot = fleet(*(worker(f"p{i}") for i in range(4)), *(worker(f"d{i}") for i in range(4)))
    chosen = [routed(need(id=f"request {i}"), snapshot) for i in range(200)]
    assert {route.prefill for route in chosen} == {"p0", "p1", "p2", "p3"}
    assert {route.decode for route in chosen} == {"d0", "d1", "d2", "d3"}
    again = FleetSnapshot(snapshot.workers[::-1])
    assert [routed(need(id=f"request {i}"), again) for i in range(200)] == chosen


@pytest.mark.parametrize(("cached", "local"), [(20, 304), (17, 272), (16, None), (0, None)])
def test_few_tokens_left_are_prefilled_where_the_prefix_is(cached, local):
    """Also of a prompt that is whole in the cache, the last token is computed."""
    route = routed(need(320), fleet(P, D, worker("d1")), Policy(local_prefill_below_tokens=64), d1=cached)
    if local is None:
        assert route.prefill == "p0"
    else:
        assert (route.prefill, route.decode, route.cached) == (None, "d1", {"d1": local})
        assert f"{320 - local} tokens" in route.why


@pytest.mark.parametrize(
    ("fault", "of_prefill"),  # a prefill worker holds only the prompt
    [
        ({"ready": False}, {}),
        ({"draining": True}, {}),
        ({"broken": True}, {}),
        ({"max_length": 400}, {"max_length": 300}),
        ({"num_blocks": 20}, {"num_blocks": 10}),
        ({"kv_revision": "r2"}, {}),
        ({"credits": 1, "pending_sequences": 1}, {}),
    ],
)
def test_unfit_workers_are_left_out_and_named(fault, of_prefill):
    wanted, good = need(kv_revision="r1"), (worker("p0", queue_tokens=900), worker("d0", running=20))
    for bad in (worker("p1", **fault | of_prefill), worker("d1", **fault)):
        route = routed(wanted, fleet(*good, bad))
        assert (route.prefill, route.decode) == ("p0", "d0")
    none = choose(wanted, fleet(P, bad), {}, ALWAYS_SPLIT)
    assert isinstance(none, NoRoute)
    assert "d1" in none.why


def test_cached_blocks_need_no_room():
    tight = fleet(P, worker("d0", free_blocks=8))
    assert isinstance(choose(need(320), tight, {"d0": 5}, ALWAYS_SPLIT), NoRoute)
    assert routed(need(320), tight, d0=15).decode == "d0"


@pytest.mark.parametrize(
    ("other", "used"),
    [
        ({}, False),
        ({"free_blocks": 0}, False),  # full: worth waiting for
        ({"ready": False}, True),
        ({"draining": True}, True),
        ({"broken": True}, True),
        ({"num_blocks": 10}, True),
        ({"kv_revision": "r2"}, True),
    ],
)
def test_a_worker_that_failed_often_is_used_where_no_other_is_left(other, used):
    snapshot = fleet(P, worker("d0", broken=True), worker("d1", **other))
    assert named(filters.forgiven(snapshot, need(kv_revision="r1")), "d0").broken is not used
    spared = named(filters.forgiven(fleet(worker("p0", broken=True), D), need()), "p0")
    assert not spared.broken, "the parts stand for themselves"


def test_a_sequence_that_is_to_be_local_is_computed_where_most_of_it_is_cached():
    route = routed(need(local=True), fleet(P, D, worker("d1", queue_tokens=50_000)), d1=4)
    assert (route.prefill, route.decode, route.prefill_at) == (None, "d1", "recompute")
    assert "256 tokens to recompute" in route.why
    assert routed(need(local=True), fleet(P, worker("u0"))).prefill_at == "unified"


COUNTS = st.integers(0, 1200)
FIELDS = {"kv_revision": st.sampled_from(["r1", "r2"]), "ready": st.booleans(), "draining": st.booleans()}
FIELDS |= {"free_blocks": COUNTS, "queue_tokens": COUNTS, "pending_blocks": COUNTS}
NAMES = [f"{role}{number}" for role in "pdu" for number in range(4)]
VIEWS = st.builds(lambda name, fields: worker(name, **fields), st.sampled_from(NAMES), st.fixed_dictionaries(FIELDS))


@settings(max_examples=times(40), deadline=None)
@given(
    st.lists(VIEWS, max_size=8, unique_by=lambda view: view.name),
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 500)),
    st.integers(1, 9000),
    st.sampled_from(["Local", "Wait", "Fail"]),
    st.sampled_from([0, 64, 2000]),
)
def test_whatever_the_fleet_a_route_obeys_every_filter(workers, matches, tokens, unavailable, below):
    snapshot, wanted = FleetSnapshot(tuple(workers)), need(tokens)
    route = choose(wanted, snapshot, matches, Policy(below, unavailable))
    if isinstance(route, NoRoute):
        return
    used = [named(snapshot, name) for name in (route.prefill, route.decode) if name]
    for view in used:
        matched = min(matches.get(view.name, 0), (tokens - 1) // BLOCK)
        assert filters.why_not(view, wanted, matched) is None
        assert route.cached[view.name] == matched * BLOCK
    assert len({view.kv_revision for view in used}) == 1
    assert used[-1].decodes


FASTER, ROOMIER = worker("p1", queue_tokens=900, prefill_rate=3000.0), worker("d1", free_blocks=900, running=8)
COST = DecodeCoefficients(0.02, 1e-3, 1e-6)
SLOW_STEPS = worker("d0", decode_cost=replace_struct(COST, per_step=0.03), step_time=0.02)
FAST_STEPS = worker("d1", decode_cost=COST, step_time=0.1)
# p1 is slower for a token, but attends faster: 1 ms and 1 µs against 2 ms and 10 ns
QUADRATIC = worker("p0", prefill_cost=PrefillCoefficients(0.0, 1e-3, 1e-6, 512))
LINEAR = worker("p1", prefill_cost=PrefillCoefficients(0.0, 2e-3, 1e-8, 512))
WEIGHED = (P, worker("p1", queue_tokens=200), worker("d0", free_blocks=300), worker("d1", running=9))
REVISIONS = (worker("p0", kv_revision="r2"), worker("p1", queue_tokens=5000), D, worker("d1"))
SQL, OTHER_SQL, LAW = {"sql": "digest-1"}, {"sql": "digest-9"}, {"law": "digest-2"}
ROLLOUT = (worker("p0", adapters=SQL), worker("d0", adapters=OTHER_SQL), worker("d1", adapters=SQL, running=50))
LOCAL = {"policy": Policy(local_prefill_below_tokens=64), "d1": 17}


def able(**fields):
    """Prefill and decode workers of which one each can do more."""
    return (P, worker("p1", **fields), D, worker("d1", **fields))


def loading(queued):
    """Half a second to load the adapter, and 1,000 tokens a second."""
    holds = {"adapters": SQL, "loaded_adapters": ("digest-1",), "queue_tokens": queued}
    return (worker("u0", adapters=SQL), worker("u1", **holds))


@pytest.mark.parametrize(
    ("workers", "wanted", "options", "route"),
    [
        # the longest prefix, until its queue costs more: 160 tokens to compute and the queue, against 320 tokens
        *(
            ((P, worker("p1", queue_tokens=queued), D), need(), {"p1": 10}, (chosen, "d0"))
            for queued, chosen in ((100, "p1"), (300, "p1"), (340, "p0"))
        ),
        ((worker("p0", queue_tokens=500), FASTER, D), need(), {}, ("p1", "d0")),
        ((QUADRATIC, LINEAR, D), need(320), {}, ("p0", "d0")),
        ((QUADRATIC, LINEAR, D), need(6400), {}, ("p1", "d0")),
        # decode workers by what their steps cost now, not by their last one; an unmeasured one is taken for usual
        ((P, SLOW_STEPS, FAST_STEPS), need(), {}, ("p0", "d1")),
        ((P, SLOW_STEPS, replace(FAST_STEPS, context_tokens=50_000)), need(), {}, ("p0", "d0")),
        ((P, worker("d1", step_time=0.05), worker("d2", running=1)), need(), {}, ("p0", "d1")),
        ((P, worker("d0", free_blocks=300, running=8), ROOMIER), need(), {}, ("p0", "d1")),
        # one without slots is full, however light its steps; those of paused sequences count as free
        ((P, worker("d0", slots=4, running=5), worker("d1", running=50)), need(), {}, ("p0", "d1")),
        ((P, worker("d0", slots=4, running=5, paused=1), worker("d1", running=50)), need(), {}, ("p0", "d0")),
        ((P, worker("d0", slots=4, running=1, granted=4), worker("d1", running=50)), need(), {}, ("p0", "d1")),
        # weights
        (WEIGHED, need(), {"p1": 10}, ("p1", "d1")),
        (WEIGHED, need(), {"p1": 10, "policy": Policy(0, weights=Weights(prefix_cache=1.0))}, ("p0", "d1")),
        (WEIGHED, need(), {"p1": 10, "policy": Policy(0, weights=Weights(kv_cache_utilization=0.0))}, ("p1", "d0")),
        # without prefill workers what decode workers hold counts as in a prefill
        ((worker("d0", running=5), worker("d1")), need(3200), {"d0": 150}, (None, "d0")),
        ((worker("d0", running=5, queue_tokens=9000), worker("d1")), need(3200), {"d0": 150}, (None, "d1")),
        ((worker("p0", ready=False), D), need(), {"policy": Policy(0, "Local")}, (None, "d0")),
        # prefill where the prefix is wants room and no queue
        ((P, D, worker("d1")), need(), LOCAL, (None, "d1")),
        ((P, D, worker("d1", free_blocks=1)), need(), LOCAL, ("p0", "d0")),
        ((P, D, worker("d1", queue_tokens=500)), need(), LOCAL, ("p0", "d1")),
        # only workers of one KV revision are paired
        (REVISIONS[:3], need(), {}, ("p1", "d0")),
        ((*REVISIONS, worker("d2", kv_revision="r2")), need(), {}, ("p0", "d2")),
        ((*REVISIONS[:3], worker("d2", kv_revision="r2")), need(kv_revision="r1"), {}, ("p1", "d0")),
        ((P, D, worker("d1", running=50)), need(avoid=frozenset({"d0"})), {}, ("p0", "d1")),
        # unified workers do both, and share with pairs by cost
        ((worker("u0", queue_tokens=900), worker("u1")), need(), {}, (None, "u1")),
        ((worker("p0", queue_tokens=5000), D, worker("u0")), need(), {}, (None, "u0")),
        ((worker("p0", queue_tokens=5000), D, worker("u0", queue_tokens=50_000)), need(), {}, ("p0", "d0")),
        # half of a pair has a transport, of one network: one that fell back to TCP cannot be reached by RDMA
        ((worker("p0", address=b""), D), need(), {}, (None, "d0")),
        ((P, worker("d0", address=b"")), need(), {}, (None, "d0")),
        *(
            ((worker("p0", transport=sender), worker("d0", transport=receiver)), need(), {}, (paired, "d0"))
            for sender, receiver, paired in (
                ("ucx:rdma", "ucx:rdma", "p0"),
                ("ucx:rdma", "ucx:rdma+cuda", "p0"),
                ("ucx:tcp", "ucx:shm+tcp", "p0"),
                ("ucx:rdma", "ucx:tcp", None),
                ("ucx:tcp", "ucx:rdma+cuda", None),
            )
        ),
        # what only some workers obey, or have; one of an older release would pass over it
        (able(grammars=("json_schema", "regex")), need(grammar="regex"), {}, ("p1", "d1")),
        (able(params=("allowed_token_ids", "bad_words")), need(params=("bad_words",)), {}, ("p1", "d1")),
        (able(adapters=SQL), need(adapter="sql"), {}, ("p1", "d1")),
        # while a changed adapter is rolled out, workers have the old one or the new one; both of a pair have the same
        (ROLLOUT, need(adapter="sql"), {}, ("p0", "d1")),
        (ROLLOUT[:2], need(adapter="sql"), {}, (None, "d0")),
        # workers that hold the adapter, until their load costs more
        (loading(0), need(adapter="sql"), {}, (None, "u1")),
        (loading(400), need(adapter="sql"), {}, (None, "u1")),
        (loading(600), need(adapter="sql"), {}, (None, "u0")),
        (loading(400), need(), {}, (None, "u0")),
        (loading(600), need(adapter="sql"), {"policy": Policy(weights=Weights(adapter=0.0))}, (None, "u0")),
        (loading(400), need(adapter="sql"), {"policy": Policy(weights=Weights(adapter=0.0))}, (None, "u0")),
    ],
)
def test_the_cheapest_workers_that_can_take_it_are_chosen(workers, wanted, options, route):
    found = routed(wanted, fleet(*workers), **options)
    assert (found.prefill, found.decode) == route


@pytest.mark.parametrize(
    ("workers", "wanted", "policy", "lasting", "why"),
    [
        # a full decode worker is worth waiting for, and a small one is not
        ((P, worker("d0", free_blocks=10, cached_blocks=5)), need(), ALWAYS_SPLIT, False, "d0"),
        ((P, worker("d0", num_blocks=10)), need(), ALWAYS_SPLIT, True, "d0"),
        ((), need(), ALWAYS_SPLIT, False, ""),
        # without prefill workers the policy decides
        ((worker("p0", ready=False), D), need(), Policy(0, "Wait"), False, "p0: not ready"),
        ((worker("p0", ready=False), D), need(), Policy(0, "Fail"), True, "p0: not ready"),
        (
            able(grammars=("regex",)),
            need(grammar="rules"),
            ALWAYS_SPLIT,
            True,
            "d1: cannot make output match a grammar",
        ),
        (able(params=("bad_words",)), need(params=("bad_words", "later")), ALWAYS_SPLIT, True, "d1: cannot obey later"),
        (able(adapters=LAW), need(adapter="chess"), ALWAYS_SPLIT, True, "d1: has no adapter chess"),
        (ROLLOUT[:2], need(adapter="sql", digest="digest-1"), ALWAYS_SPLIT, None, "d0: has another adapter sql"),
    ],
)
def test_without_a_route_it_is_known_why_and_whether_that_lasts(workers, wanted, policy, lasting, why):
    found = choose(wanted, fleet(*workers), {}, policy)
    assert isinstance(found, NoRoute)
    assert why in found.why
    assert lasting is None or found.lasting is lasting


HELPED = Policy(local_prefill_below_tokens=0, objectives=Objectives(ttft=2.0, tpot=0.1))
HALF = DecodeCoefficients(per_step=0.03, per_row=0.01, per_context=0.0)  # 50 ms a step with two sequences


def long(name: str, **overrides: Any) -> WorkerView:
    return worker(name, max_length=16_000, **overrides)


def helped(
    *workers: WorkerView, tokens: int = 1000, policy: Policy = HELPED, matches: Any = (), **wanted: Any
) -> Route:
    return routed(need(tokens, **wanted), fleet(*workers), policy, **dict(matches))


SLOW = PrefillCoefficients(0.0, 1e-3, 1e-6, 512)
TAKEN = long("d0", running=2, decode_cost=HALF, queue_tokens=50)
NEAR, QUICK, LATE = long("d0"), long("d0", prefill_rate=2000.0), long("d0", queue_tokens=9000)
THREE = (long("p0", queue_tokens=500), long("p1", queue_tokens=500), long("p2", draining=True), NEAR)
NEXT = replace(long("p1"), kv_revision="next")


def queue(tokens: int) -> WorkerView:
    return long("p0", queue_tokens=tokens)


@pytest.mark.parametrize(
    ("workers", "options", "where"),
    [
        pytest.param((queue(1000), NEAR), {}, "separate", id="a queue within the objective"),
        pytest.param((queue(1001), NEAR), {}, "busy", id="a queue that misses it"),
        pytest.param((queue(9000), replace(NEAR, shares_cores=True)), {}, "separate", id="on the same cores"),
        pytest.param((queue(9000), NEAR), {"policy": Policy(0)}, "separate", id="no objectives"),
        pytest.param((long("p0"), QUICK), {"tokens": 9000}, "separate", id="a prompt that alone takes too long"),
        pytest.param((queue(9000), long("p1"), QUICK), {"tokens": 9000}, "separate", id="one idle worker is enough"),
        pytest.param((queue(100), NEAR), {"tokens": 400, "waited": 1.4}, "separate", id="it waited a little"),
        pytest.param((queue(100), NEAR), {"tokens": 400, "waited": 1.6}, "busy", id="it waited"),
        # two prefill workers compute 2,000 tokens a second; a third one leaves
        pytest.param(THREE, {"behind": 1000}, "separate", id="those behind it are in time"),
        pytest.param(THREE, {"behind": 1100}, "busy", id="those behind it are to be in time too"),
        # whatever they have queued: workers compute prompts of tenants in turn
        pytest.param((queue(9000), NEAR), {"tenants": 2}, "separate", id="a tenant's only prompt is next"),
        pytest.param((queue(9000), NEAR), {"tenants": 3}, "busy", id="behind one of each other tenant"),
        pytest.param((queue(900), NEAR), {"tenants": 60}, "separate", id="no longer than the queue"),
        # a prompt of one second, behind one like it, at either
        pytest.param((queue(9000), LATE), {"tenants": 2, "waited": 1.0}, "separate", id="soon at either"),
        # as in a rollout
        pytest.param((queue(9000), NEXT, NEAR), {}, "busy", id="an idle one of another KV revision"),
        # 40 of 90 ms are left, so a prompt of 1,000 tokens and the 50 before it take 2.36 s there
        pytest.param((queue(1300), TAKEN), {}, "separate", id="less time there"),
        pytest.param((queue(1400), TAKEN), {}, "busy", id="but sooner"),
        pytest.param((queue(9000), replace(TAKEN, running=6)), {}, "separate", id="no time is left"),
        pytest.param((queue(9000), replace(TAKEN, running=7)), {}, "separate", id="less than none"),
    ],
)
def test_a_decode_worker_computes_what_prefill_workers_would_have_too_late(workers, options, where):
    route = helped(*workers, **options)
    assert (route.prefill_at, route.prefill is None) == (where, where == "busy")


def test_the_route_says_how_much_sooner_it_is():
    assert "local: 1.00 s, on prefill workers 4.00 s" in helped(queue(3000), NEAR).why


def test_a_prefill_worker_that_would_be_in_time_is_not_busy_though_another_is_cheaper():
    """p0 knows most of the prompt, so it is the cheaper one in spite of its queue."""
    route = helped(queue(1600), long("p1", queue_tokens=500), NEAR, matches={"p0": 56}, waited=0.4)
    assert (route.prefill_at, route.prefill) == ("separate", "p0")


@pytest.mark.parametrize("unfit", [{"prefill_cost": SLOW}, {"queue_tokens": 100}, {"free_blocks": 10}])
def test_the_one_that_is_done_first_and_has_room_computes_it(unfit):
    assert helped(queue(3000), long("d0", **unfit), long("d1"), long("d2", **unfit)).decode == "d1"


@pytest.mark.parametrize(
    ("seconds", "chosen", "restored"),
    [(0.0, "p1", 256), (0.001, "p1", 256), (0.02, "p0", 0)],
    ids=["not measured", "faster than computing", "slower than computing"],
)
def test_blocks_in_a_slower_tier_count_by_the_time_to_restore_them(seconds, chosen, restored):
    """p0 has 4 blocks in its arena; p1 can restore 16, each of which takes 16 ms to compute."""
    behind = worker("p1", tiers=(HOST,), restore_seconds=(seconds,))
    matches = {"p0": 4, holder("p1", HOST): 16}
    route = choose(need(), fleet(P, behind, D), matches, ALWAYS_SPLIT)
    assert (route.prefill, route.cached.get("p1", 0)) == (chosen, restored)
    assert ("256 to restore" in route.why) == bool(restored)


def test_an_unreported_tier_and_one_with_less_than_the_arena_change_nothing():
    behind = worker("p1", tiers=(HOST,))
    assert routed(need(), fleet(behind, D), p1=4).cached["p1"] == 64
    matches = {"p1": 4, holder("p1", HOST): 3}
    assert choose(need(), fleet(behind, D), matches, ALWAYS_SPLIT).cached["p1"] == 64


SHARING = replace(ALWAYS_SPLIT, kv_sharing="Auto")
TALK = need(1600)  # 100 blocks: 1.6 s to compute


def test_cached_blocks_are_fetched_where_that_is_faster_and_the_route_says_from_where():
    route = routed(TALK, fleet(P, worker("d0", put_rate=1000.0)), SHARING, p0=20, d0=80)
    assert route.fetch is not None
    assert (route.fetch.source, route.fetch.blocks, route.to_compute) == ("d0", 80, 320)
    assert route.fetch.seconds == pytest.approx(0.01 + 60 / 1000)
    assert route.fetch.budget == pytest.approx(60 * BLOCK / 1000 / 2)
    assert "320 tokens cached, 960 fetched from d0 in 0.07 s, 320 to compute" in route.why
    soon = routed(TALK, fleet(P, D), SHARING, {"p0": 79}, p0=20, d0=80)
    assert (soon.fetch, soon.to_compute) == (None, 21 * BLOCK), "it will have nearly all of it"


def test_a_fetch_may_also_take_the_time_that_its_prompt_would_wait_in_the_queue():
    """In 0.61 s, which is more than half of the 0.96 s that it saves, and less than the queue of 0.7 s."""
    route = routed(TALK, fleet(queue(700), worker("d0", put_rate=100.0)), SHARING, p0=20, d0=80)
    assert route.fetch is not None
    assert (route.fetch.seconds, route.fetch.delay) == (pytest.approx(0.61), 0.0)
    assert route.fetch.budget == pytest.approx(0.7 + 0.48)
    assert "960 fetched from d0 in 0.61 s, 320 to compute, 700 queued, 1.34 s" in route.why


@pytest.mark.parametrize(
    ("policy", "source"),
    [
        (ALWAYS_SPLIT, {}),
        (SHARING, {"put_rate": 100.0}),  # 0.6 s; computing them takes 0.96 s
        (SHARING, {"address": b""}),
        (SHARING, {"draining": True}),
        (SHARING, {"broken": True}),
        (SHARING, {"kv_revision": "r2"}),
        (SHARING, {"block_size": 32}),
        (SHARING, {"transport": "ucx:rdma"}),
    ],
)
def test_a_prompt_is_computed_where_no_source_can_send_its_blocks_in_half_of_that_time(policy, source):
    others = {"transport": "ucx:tcp", "put_rate": 1000.0}
    snapshot = fleet(worker("p0", **others), worker("d0", **others), worker("d1", **{**others, **source}))
    route = routed(TALK, snapshot, policy, p0=20, d1=80)
    assert (route.fetch, route.to_compute) == (None, 80 * BLOCK)


def test_a_hot_prefix_spreads_to_a_worker_with_a_shorter_queue():
    """Computed anew there, it would wait for the queue of the worker that has it."""
    hot, idle = worker("p0", queue_tokens=1200, put_rate=1000.0), worker("p1")
    assert routed(TALK, fleet(hot, idle, D), p0=90).prefill == "p0"
    route = routed(TALK, fleet(hot, idle, D), SHARING, p0=90)
    assert (route.prefill, route.fetch.source, route.fetch.blocks) == ("p1", "p0", 90)
    busy, free = worker("d0", running=5), worker("d1")
    assert routed(TALK, fleet(idle, busy, free), SHARING, d0=90, d1=90).fetch.source == "d1"
    one = routed(TALK, fleet(worker("u0", running=40), worker("u1")), replace(Policy(), kv_sharing="Auto"), u0=90)
    assert (one.decode, one.fetch.source) == ("u1", "u0")
