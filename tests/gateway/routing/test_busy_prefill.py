"""Decode workers compute prompts that prefill workers would have too late, where they keep both objectives."""

from dataclasses import replace
from typing import Any

import pytest

from legato_gateway.routing.choose import Policy, Route, choose
from legato_gateway.routing.filters import Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.scorers import Objectives
from legato_protocol.load import DecodeCoefficients, PrefillCoefficients

HELPED = Policy(local_prefill_below_tokens=0, objectives=Objectives(ttft=2.0, tpot=0.1))
HALF = DecodeCoefficients(per_step=0.03, per_row=0.01, per_context=0.0)  # 50 ms a step with two sequences


def worker(name: str, **overrides: Any) -> WorkerView:
    """1,000 prompt tokens a second."""
    fields = {"address": name.encode(), "free_blocks": 1000, "prefill_rate": 1000.0, **overrides}
    return WorkerView(name, {"p": "prefill", "d": "decode"}[name[0]], "e", "r", 16, 1000, 16_000, **fields)


def routed(*workers: WorkerView, tokens: int = 1000, policy: Policy = HELPED, **need: Any) -> Route:
    route = choose(Need("r", tokens, 100, **need), FleetSnapshot(workers), {}, policy)
    assert isinstance(route, Route), route
    return route


@pytest.mark.parametrize(("queued", "where"), [(1000, "separate"), (1001, "busy")])
def test_a_queue_that_misses_the_objective_is_left_to_a_decode_worker(queued: int, where: str) -> None:
    route = routed(worker("p0", queue_tokens=queued), worker("d0"))
    assert (route.prefill_at, route.prefill) == (where, None if where == "busy" else "p0")


def test_the_route_says_how_much_sooner_it_is() -> None:
    assert "local: 1.00 s, on prefill workers 4.00 s" in routed(worker("p0", queue_tokens=3000), worker("d0")).why


def test_without_objectives_prompts_wait_for_prefill_workers() -> None:
    policy = Policy(local_prefill_below_tokens=0)
    assert routed(worker("p0", queue_tokens=9000), worker("d0"), policy=policy).prefill == "p0"


def test_a_prompt_that_alone_takes_too_long_is_no_sign_of_a_busy_worker() -> None:
    assert routed(worker("p0"), worker("d0", prefill_rate=2000.0), tokens=9000).prefill == "p0"


@pytest.mark.parametrize(("waited", "where"), [(1.4, "separate"), (1.6, "busy")])
def test_time_that_it_has_waited_counts(waited: float, where: str) -> None:
    assert routed(worker("p0", queue_tokens=100), worker("d0"), tokens=400, waited=waited).prefill_at == where


@pytest.mark.parametrize(("behind", "where"), [(1000, "separate"), (1100, "busy")])
def test_those_that_are_held_behind_it_are_to_be_in_time_too(behind: int, where: str) -> None:
    """Two prefill workers compute 2,000 tokens a second; a third one leaves."""
    prefillers = worker("p0", queue_tokens=500), worker("p1", queue_tokens=500), worker("p2", draining=True)
    assert routed(*prefillers, worker("d0"), behind=behind).prefill_at == where


@pytest.mark.parametrize(("turns", "where"), [(2, "separate"), (3, "busy")])
def test_the_only_prompt_of_a_tenant_waits_for_one_of_each_other_tenant(turns: int, where: str) -> None:
    """Whatever they have queued: workers compute prompts of tenants in turn."""
    assert routed(worker("p0", queue_tokens=9000), worker("d0"), turns=turns).prefill_at == where


def test_it_waits_no_longer_than_the_queue() -> None:
    assert routed(worker("p0", queue_tokens=900), worker("d0"), turns=60).prefill_at == "separate"


def test_its_turn_comes_soon_at_a_decode_worker_too() -> None:
    """A prompt of one second, behind one like it, at either."""
    busy = {"queue_tokens": 9000}
    assert routed(worker("p0", **busy), worker("d0", **busy), turns=2, waited=1.0).prefill == "p0"


def test_a_prefill_worker_that_would_be_in_time_is_no_busy_one_though_another_is_cheaper() -> None:
    """p0 knows most of the prompt, so it is the cheaper one in spite of its queue."""
    cached = {"p0": 56}
    prefillers = worker("p0", queue_tokens=1600), worker("p1", queue_tokens=500)
    route = choose(Need("r", 1000, 100, waited=0.4), FleetSnapshot((*prefillers, worker("d0"))), cached, HELPED)
    assert isinstance(route, Route)
    assert (route.prefill_at, route.prefill) == ("separate", "p0")


def test_an_idle_prefill_worker_that_no_decode_worker_takes_over_from_is_of_no_use() -> None:
    """As in a rollout."""
    other = replace(worker("p1"), kv_revision="next")
    assert routed(worker("p0", queue_tokens=9000), other, worker("d0")).prefill_at == "busy"


def test_one_idle_prefill_worker_is_enough() -> None:
    """The prompt alone takes longer than the objective."""
    workers = worker("p0", queue_tokens=9000), worker("p1"), worker("d0", prefill_rate=2000.0)
    assert routed(*workers, tokens=9000).prefill == "p1"


@pytest.mark.parametrize(("queued", "where"), [(1100, "separate"), (1200, "busy")])
def test_what_a_decode_worker_decodes_leaves_it_less_time(queued: int, where: str) -> None:
    """Half of each step is left, so a prompt of 1,000 tokens and the 50 before it take 2.1 s there."""
    decode = worker("d0", running=2, decode_cost=HALF, queue_tokens=50)
    assert routed(worker("p0", queue_tokens=queued), decode).prefill_at == where


@pytest.mark.parametrize("running", [7, 8])
def test_a_decode_worker_whose_steps_take_the_objective_computes_none(running: int) -> None:
    decode = worker("d0", running=running, decode_cost=HALF)
    assert routed(worker("p0", queue_tokens=9000), decode).prefill == "p0"


def test_the_one_that_is_done_first_computes_it() -> None:
    """Attention is dearer at d0, and d2 has a queue."""
    slow = PrefillCoefficients(0.0, 1e-3, 1e-6, 512)
    decoders = worker("d0", prefill_cost=slow), worker("d1"), worker("d2", queue_tokens=100)
    assert routed(worker("p0", queue_tokens=3000), *decoders).decode == "d1"


def test_a_decode_worker_without_room_computes_none() -> None:
    assert routed(worker("p0", queue_tokens=9000), worker("d0", free_blocks=10), worker("d1")).decode == "d1"
