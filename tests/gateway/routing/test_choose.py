"""The routing decision over a snapshot."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct

from legato_gateway.routing import filters, scorers
from legato_gateway.routing.choose import NoRoute, Policy, Route, choose
from legato_gateway.routing.filters import Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.scorers import Weights
from legato_protocol.load import DecodeCoefficients, PrefillCoefficients

BLOCK = 16
ALWAYS_SPLIT = Policy(local_prefill_below_tokens=0)


def worker(name: str, **overrides: Any) -> WorkerView:
    role = {"p": "prefill", "d": "decode", "u": "unified"}[name[0]]
    fields = {
        "epoch": "e",
        "kv_revision": "r1",
        "address": name.encode(),
        "block_size": BLOCK,
        "num_blocks": 1000,
        "max_length": 8000,
    }
    return WorkerView(name=name, role=role, **{**fields, "free_blocks": 1000, "prefill_rate": 1000.0, **overrides})


def fleet(*workers: WorkerView) -> FleetSnapshot:
    return FleetSnapshot(workers)


def named(snapshot: FleetSnapshot, name: str) -> WorkerView:
    return next(worker for worker in snapshot.workers if worker.name == name)


def need(tokens: int = 320, **overrides: Any) -> Need:
    return Need(**{"id": "r", "tokens": tokens, "growth": 100, **overrides})


def routed(wanted: Need, snapshot: FleetSnapshot, policy: Policy = ALWAYS_SPLIT, **matches: int) -> Route:
    route = choose(wanted, snapshot, matches, policy)
    assert isinstance(route, Route), route
    return route


def test_prefill_and_decode_are_apart_and_the_route_says_why() -> None:
    route = routed(need(), fleet(worker("p0"), worker("d0")), p0=4, d0=2)
    assert (route.prefill, route.decode) == ("p0", "d0")
    assert route.cached == {"p0": 64, "d0": 32}
    assert "p0" in route.why
    assert "64 tokens cached" in route.why


def test_the_longest_prefix_wins_until_its_queue_costs_more() -> None:
    workers = worker("p0"), worker("p1", queue_tokens=100), worker("d0")
    assert routed(need(), fleet(*workers), p1=10).prefill == "p1"
    for queued, chosen in ((300, "p1"), (340, "p0")):  # 160 tokens to compute and the queue, against 320 tokens
        there = replace(workers[1], queue_tokens=queued)
        assert routed(need(), fleet(workers[0], there, workers[2]), p1=10).prefill == chosen


def test_a_predicted_prefix_counts_in_the_cost_of_a_prefill_alone() -> None:
    workers = worker("p0"), worker("p1"), worker("d0", free_blocks=19)
    route = choose(need(), fleet(*workers[:2], worker("d0")), {}, ALWAYS_SPLIT, {"p1": 10})
    assert isinstance(route, Route)
    assert (route.prefill, route.cached["p1"], route.to_compute) == ("p1", 0, 160)
    assert isinstance(choose(need(), fleet(*workers), {}, ALWAYS_SPLIT, {"d0": 19}), NoRoute), "no room is predicted"
    local = choose(need(), fleet(worker("p0"), worker("d0")), {}, Policy(64), {"d0": 19})
    assert isinstance(local, Route)
    assert local.prefill == "p0", "what is not there yet is not a short prompt"
    assert choose(need(), fleet(worker("u0"), worker("u1")), {}, Policy(), {"u1": 10}).decode == "u1"  # type: ignore


@pytest.mark.parametrize(
    ("tokens", "chosen"),
    [(320, "p0"), (6400, "p1")],
)
def test_a_long_prompt_costs_what_its_attention_does(tokens: int, chosen: str) -> None:
    """p1 is slower for a token, but attends faster: 1 ms and 1 µs against 2 ms and 10 ns."""
    quadratic = worker("p0", prefill_cost=PrefillCoefficients(0.0, 1e-3, 1e-6, 512))
    linear = worker("p1", prefill_cost=PrefillCoefficients(0.0, 2e-3, 1e-8, 512))
    assert routed(need(tokens), fleet(quadratic, linear, worker("d0"))).prefill == chosen


def test_what_is_cached_is_attended_to() -> None:
    cost = PrefillCoefficients(0.5, 0.0, 1e-6, 100)
    assert scorers.compute_seconds(cost, 1000, 250) == pytest.approx(3 * 0.5 + 1e-6 * 250 * (750 + 125))


def test_decode_workers_with_slower_steps_are_avoided_by_what_they_cost_now_not_by_their_last_step() -> None:
    cost = DecodeCoefficients(0.02, 1e-3, 1e-6)
    slow = worker("d0", decode_cost=replace_struct(cost, per_step=0.03), step_time=0.02)
    fast = worker("d1", decode_cost=cost, step_time=0.1)
    assert routed(need(), fleet(worker("p0"), slow, fast)).decode == "d1"
    crowded = replace(fast, context_tokens=50_000)
    assert routed(need(), fleet(worker("p0"), slow, crowded)).decode == "d0"
    unmeasured = worker("d1", step_time=0.05), worker("d2", running=1)
    assert routed(need(), fleet(worker("p0"), *unmeasured)).decode == "d1", "an unmeasured one is taken for usual"


@pytest.mark.parametrize(
    ("weights", "prefill", "decode"),
    [
        (Weights(), "p1", "d1"),
        (Weights(prefix_cache=1.0), "p0", "d1"),
        (Weights(kv_cache_utilization=0.0), "p1", "d0"),
    ],
)
def test_weights_say_what_counts(weights: Weights, prefill: str, decode: str) -> None:
    workers = worker("p0"), worker("p1", queue_tokens=200), worker("d0", free_blocks=300), worker("d1", running=9)
    route = routed(need(), fleet(*workers), Policy(0, weights=weights), p1=10)
    assert (route.prefill, route.decode) == (prefill, decode)


def test_without_prefill_workers_what_decode_workers_hold_counts_as_in_a_prefill() -> None:
    workers = worker("d0", running=5), worker("d1")
    assert routed(need(3200), fleet(*workers), d0=150).decode == "d0"
    assert routed(need(3200), fleet(worker("d0", running=5, queue_tokens=9000), workers[1]), d0=150).decode == "d1"


def test_truth_counts_where_less_is_predicted() -> None:
    route = choose(need(), fleet(worker("p0"), worker("d0")), {"p0": 10}, ALWAYS_SPLIT, {"p0": 5})
    assert isinstance(route, Route)
    assert route.to_compute == 160


def test_a_faster_worker_may_have_the_longer_queue() -> None:
    workers = worker("p0", queue_tokens=500), worker("p1", queue_tokens=900, prefill_rate=3000.0), worker("d0")
    assert routed(need(), fleet(*workers)).prefill == "p1"


def test_what_this_gateway_has_just_sent_counts() -> None:
    """Requests of one moment, before any worker could report, spread over the workers."""
    pending = dict.fromkeys(["p0", "p1", "p2", "d0", "d1"], 0)
    for i in range(30):
        views = [worker(name, pending_sequences=n, pending_tokens=n * 320) for name, n in pending.items()]
        route = routed(need(id=f"r{i}"), fleet(*views))
        pending[route.prefill or ""] += 1
        pending[route.decode] += 1
    assert [pending[name] for name in ("p0", "p1", "p2")] == [10, 10, 10]
    assert pending["d0"] == pending["d1"] == 15


def test_equal_workers_are_told_apart_by_request_and_always_alike() -> None:
    snapshot = fleet(*(worker(f"p{i}") for i in range(4)), *(worker(f"d{i}") for i in range(4)))
    chosen = [routed(need(id=f"request {i}"), snapshot) for i in range(200)]
    assert {route.prefill for route in chosen} == {"p0", "p1", "p2", "p3"}
    assert {route.decode for route in chosen} == {"d0", "d1", "d2", "d3"}
    again = FleetSnapshot(snapshot.workers[::-1])
    assert [routed(need(id=f"request {i}"), again) for i in range(200)] == chosen


def test_a_fuller_decode_worker_is_avoided() -> None:
    workers = worker("p0"), worker("d0", free_blocks=300, running=8), worker("d1", free_blocks=900, running=8)
    assert routed(need(), fleet(*workers)).decode == "d1"


@pytest.mark.parametrize(("held", "local"), [(17, True), (16, False), (0, False)])
def test_few_tokens_left_are_prefilled_where_the_prefix_is(held: int, local: bool) -> None:
    snapshot = fleet(worker("p0"), worker("d0"), worker("d1"))
    route = routed(need(320), snapshot, Policy(local_prefill_below_tokens=64), d1=held)
    assert (route.prefill is None) == local
    if local:
        assert route.decode == "d1"
        assert "48 tokens" in route.why


def test_local_prefill_wants_room_and_no_queue() -> None:
    policy = Policy(local_prefill_below_tokens=64)
    for overrides in ({"free_blocks": 1}, {"queue_tokens": 500}):
        snapshot = fleet(worker("p0"), worker("d0"), worker("d1", **overrides))
        assert routed(need(320), snapshot, policy, d1=17).prefill == "p0"


def test_a_whole_prompt_in_the_cache_still_computes_its_last_token() -> None:
    route = routed(need(320), fleet(worker("d0")), Policy(local_prefill_below_tokens=64), d0=20)
    assert route.cached == {"d0": 304}


def test_only_workers_of_one_kv_revision_are_paired() -> None:
    workers = worker("p0", kv_revision="r2"), worker("p1", queue_tokens=5000), worker("d0"), worker("d1")
    route = routed(need(), fleet(*workers))
    assert route.prefill == "p1"
    both = fleet(*workers, worker("d2", kv_revision="r2"))
    route = routed(need(), both)
    assert (route.prefill, route.decode) == ("p0", "d2")
    assert routed(need(kv_revision="r1"), both).prefill == "p1"


@pytest.mark.parametrize(
    "fault",
    [
        {"ready": False},
        {"draining": True},
        {"broken": True},
        {"max_length": 400},
        {"num_blocks": 20},
        {"kv_revision": "r2"},
        {"credits": 1, "pending_sequences": 1},
    ],
)
def test_unfit_workers_are_left_out_and_named(fault: dict[str, Any]) -> None:
    wanted = need(kv_revision="r1")
    for bad in ("p1", "d1"):
        good = worker("p0", queue_tokens=900), worker("d0", running=20)
        if bad == "p1" and "max_length" in fault:
            fault = {"max_length": 300}  # a prefill worker holds the prompt only
        if bad == "p1" and "num_blocks" in fault:
            fault = {"num_blocks": 10}
        route = routed(wanted, fleet(*good, worker(bad, **fault)))
        assert (route.prefill, route.decode) == ("p0", "d0")
    none = choose(wanted, fleet(worker("p0"), worker("d1", **fault)), {}, ALWAYS_SPLIT)
    assert isinstance(none, NoRoute)
    assert "d1" in none.why


def test_a_full_decode_worker_is_worth_waiting_for_and_a_small_one_is_not() -> None:
    full = choose(need(), fleet(worker("p0"), worker("d0", free_blocks=10, cached_blocks=5)), {}, ALWAYS_SPLIT)
    assert isinstance(full, NoRoute)
    assert not full.lasting
    small = choose(need(), fleet(worker("p0"), worker("d0", num_blocks=10)), {}, ALWAYS_SPLIT)
    assert isinstance(small, NoRoute)
    assert small.lasting
    empty = choose(need(), fleet(), {}, ALWAYS_SPLIT)
    assert isinstance(empty, NoRoute)
    assert not empty.lasting


def test_blocks_held_already_need_no_room() -> None:
    tight = fleet(worker("p0"), worker("d0", free_blocks=8))
    assert isinstance(choose(need(320), tight, {"d0": 5}, ALWAYS_SPLIT), NoRoute)
    assert routed(need(320), tight, d0=15).decode == "d0"


def test_workers_to_be_avoided_are() -> None:
    snapshot = fleet(worker("p0"), worker("d0"), worker("d1", running=50))
    assert routed(need(avoid=frozenset({"d0"})), snapshot).decode == "d1"


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
def test_a_worker_that_failed_often_is_used_where_no_other_is_left(other: dict[str, Any], used: bool) -> None:
    snapshot = fleet(worker("p0"), worker("d0", broken=True), worker("d1", **other))
    forgiven = named(filters.forgiven(snapshot, need(kv_revision="r1")), "d0")
    assert forgiven.broken is not used
    spared = named(filters.forgiven(fleet(worker("p0", broken=True), worker("d0")), need()), "p0")
    assert not spared.broken, "the parts stand for themselves"


@pytest.mark.parametrize(("policy", "lasting"), [("Wait", False), ("Fail", True)])
def test_without_prefill_workers_the_policy_decides(policy: Any, lasting: bool) -> None:
    snapshot = fleet(worker("p0", ready=False), worker("d0"))
    assert routed(need(), snapshot, Policy(0, "Local")).prefill is None
    route = choose(need(), snapshot, {}, Policy(0, policy))
    assert isinstance(route, NoRoute)
    assert route.lasting is lasting
    assert "p0: not ready" in route.why


def test_a_sequence_that_is_to_be_local_is_computed_where_most_of_it_is() -> None:
    snapshot = fleet(worker("p0"), worker("d0"), worker("d1", queue_tokens=50_000))
    route = routed(need(local=True), snapshot, d1=4)
    assert (route.prefill, route.decode, route.prefill_at) == (None, "d1", "recompute")
    assert "256 tokens to recompute" in route.why
    assert routed(need(local=True), fleet(worker("p0"), worker("u0"))).prefill_at == "unified"


def test_unified_workers_do_both_and_share_with_pairs_by_cost() -> None:
    assert routed(need(), fleet(worker("u0", queue_tokens=900), worker("u1"))).decode == "u1"
    pair = worker("p0", queue_tokens=5000), worker("d0")
    assert routed(need(), fleet(*pair, worker("u0"))).decode == "u0"
    busy = worker("u0", queue_tokens=50_000)
    assert routed(need(), fleet(*pair, busy)).prefill == "p0"


def views() -> Any:
    counts = st.integers(0, 1200)
    return st.builds(
        lambda kind, number, revision, ready, draining, free, queue, pending: worker(
            f"{kind}{number}",
            kv_revision=revision,
            ready=ready,
            draining=draining,
            free_blocks=free,
            queue_tokens=queue,
            pending_blocks=pending,
        ),
        st.sampled_from("pdu"),
        st.integers(0, 3),
        st.sampled_from(["r1", "r2"]),
        st.booleans(),
        st.booleans(),
        counts,
        counts,
        counts,
    )


@given(
    st.lists(views(), max_size=8, unique_by=lambda view: view.name),
    st.dictionaries(st.sampled_from(["p0", "p1", "d0", "d1", "u0", "u1"]), st.integers(0, 500)),
    st.integers(1, 9000),
    st.sampled_from(["Local", "Wait", "Fail"]),
    st.sampled_from([0, 64, 2000]),
)
def test_whatever_the_fleet_a_route_obeys_every_filter(
    workers: list[WorkerView], matches: dict[str, int], tokens: int, unavailable: Any, below: int
) -> None:
    snapshot, wanted = FleetSnapshot(tuple(workers)), need(tokens)
    route = choose(wanted, snapshot, matches, Policy(below, unavailable))
    if isinstance(route, NoRoute):
        return
    used = [named(snapshot, name) for name in (route.prefill, route.decode) if name is not None]
    for view in used:
        matched = min(matches.get(view.name, 0), (tokens - 1) // BLOCK)
        assert filters.why_not(view, wanted, matched) is None
        assert route.cached[view.name] == matched * BLOCK
    assert len({view.kv_revision for view in used if view}) == 1
    assert used[-1] is not None
    assert used[-1].decodes


@pytest.mark.parametrize("mute", ["p0", "d0"])
def test_a_worker_without_a_transport_is_never_half_of_a_pair(mute: str) -> None:
    workers = [worker(name, **({"address": b""} if name == mute else {})) for name in ("p0", "d0")]
    assert routed(need(), fleet(*workers)).prefill is None


@pytest.mark.parametrize(
    ("sender", "receiver", "paired"),
    [
        ("ucx:rdma", "ucx:rdma", True),
        ("ucx:rdma", "ucx:rdma+cuda", True),
        ("ucx:tcp", "ucx:shm+tcp", True),
        ("ucx:rdma", "ucx:tcp", False),
        ("ucx:tcp", "ucx:rdma+cuda", False),
    ],
)
def test_only_workers_of_one_network_are_a_pair(sender: str, receiver: str, paired: bool) -> None:
    """One that fell back to TCP cannot be reached by RDMA."""
    workers = fleet(worker("p0", transport=sender), worker("d0", transport=receiver))
    assert routed(need(), workers).prefill == ("p0" if paired else None)


def test_a_grammar_is_given_only_to_workers_that_obey_its_kind() -> None:
    """One of an older release would refuse it."""
    kinds = ("json_schema", "regex")
    able = fleet(worker("p0"), worker("p1", grammars=kinds), worker("d0"), worker("d1", grammars=kinds))
    route = routed(need(grammar="regex"), able)
    assert (route.prefill, route.decode) == ("p1", "d1")
    refused = choose(need(grammar="rules"), able, {}, ALWAYS_SPLIT)
    assert isinstance(refused, NoRoute)
    assert refused.lasting
    assert "d1: cannot make output match a grammar of kind rules" in refused.why


def test_a_parameter_is_given_only_to_workers_that_obey_it() -> None:
    """One of an older release would pass over it."""
    knows = {"params": ("allowed_token_ids", "bad_words")}
    able = fleet(worker("p0"), worker("p1", **knows), worker("d0"), worker("d1", **knows))
    route = routed(need(params=("bad_words",)), able)
    assert (route.prefill, route.decode) == ("p1", "d1")
    refused = choose(need(params=("bad_words", "later")), able, {}, ALWAYS_SPLIT)
    assert isinstance(refused, NoRoute)
    assert refused.lasting
    assert "d1: cannot obey later" in refused.why


SQL, LAW = {"sql": "digest-1"}, {"law": "digest-2"}


def test_a_sequence_with_an_adapter_is_given_only_to_workers_that_have_it() -> None:
    workers = fleet(worker("p0"), worker("p1", adapters=SQL), worker("d0", adapters=LAW), worker("d1", adapters=SQL))
    route = routed(need(adapter="sql"), workers)
    assert (route.prefill, route.decode) == ("p1", "d1")
    assert routed(need(), workers).decode in ("d0", "d1")
    refused = choose(need(adapter="chess"), workers, {}, ALWAYS_SPLIT)
    assert isinstance(refused, NoRoute)
    assert refused.lasting
    assert "d1: has no adapter chess" in refused.why


def test_both_of_a_pair_have_the_same_adapter_of_that_name() -> None:
    """While a changed adapter is rolled out, workers have the old one or the new one."""
    old, new = {"sql": "digest-1"}, {"sql": "digest-9"}
    workers = worker("p0", adapters=old), worker("d0", adapters=new), worker("d1", adapters=old, running=50)
    route = routed(need(adapter="sql"), fleet(*workers))
    assert (route.prefill, route.decode) == ("p0", "d1")
    assert routed(need(adapter="sql"), fleet(*workers[:2])).prefill is None
    goes_on = choose(need(adapter="sql", digest="digest-1"), fleet(*workers[:2]), {}, ALWAYS_SPLIT)
    assert isinstance(goes_on, NoRoute)
    assert "d0: has another adapter sql" in goes_on.why


def test_workers_that_hold_the_adapter_are_preferred_until_their_load_costs_more() -> None:
    holds = {"adapters": SQL, "loaded_adapters": ("digest-1",)}
    for queued, chosen in ((0, "u1"), (400, "u1"), (600, "u0")):  # tokens, 1,000 a second: half a second to load
        workers = fleet(worker("u0", adapters=SQL), worker("u1", **holds, queue_tokens=queued))
        assert routed(need(adapter="sql"), workers).decode == chosen
        assert routed(need(), workers).decode == ("u0" if queued else routed(need(), workers).decode)
    indifferent = Policy(weights=Weights(adapter=0.0))
    assert routed(need(adapter="sql"), workers, indifferent).decode == "u0"
