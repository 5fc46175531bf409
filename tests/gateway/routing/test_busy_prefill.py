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


def routed(*workers: WorkerView, tokens: int = 1000, policy: Policy = HELPED, matches: Any = (), **need: Any) -> Route:
    route = choose(Need("r", tokens, 100, **need), FleetSnapshot(workers), dict(matches), policy)
    assert isinstance(route, Route), route
    return route


SLOW = PrefillCoefficients(0.0, 1e-3, 1e-6, 512)
TAKEN = worker("d0", running=2, decode_cost=HALF, queue_tokens=50)
D, QUICK, LATE = worker("d0"), worker("d0", prefill_rate=2000.0), worker("d0", queue_tokens=9000)
THREE = (worker("p0", queue_tokens=500), worker("p1", queue_tokens=500), worker("p2", draining=True), D)
NEXT = replace(worker("p1"), kv_revision="next")


def queue(tokens: int) -> WorkerView:
    return worker("p0", queue_tokens=tokens)


@pytest.mark.parametrize(
    ("workers", "options", "where"),
    [
        pytest.param((queue(1000), D), {}, "separate", id="a queue within the objective"),
        pytest.param((queue(1001), D), {}, "busy", id="a queue that misses it"),
        pytest.param((queue(9000), D), {"policy": Policy(0)}, "separate", id="no objectives"),
        pytest.param((worker("p0"), QUICK), {"tokens": 9000}, "separate", id="a prompt that alone takes too long"),
        pytest.param((queue(9000), worker("p1"), QUICK), {"tokens": 9000}, "separate", id="one idle worker is enough"),
        pytest.param((queue(100), D), {"tokens": 400, "waited": 1.4}, "separate", id="it waited a little"),
        pytest.param((queue(100), D), {"tokens": 400, "waited": 1.6}, "busy", id="it waited"),
        # two prefill workers compute 2,000 tokens a second; a third one leaves
        pytest.param(THREE, {"behind": 1000}, "separate", id="those behind it are in time"),
        pytest.param(THREE, {"behind": 1100}, "busy", id="those behind it are to be in time too"),
        # whatever they have queued: workers compute prompts of tenants in turn
        pytest.param((queue(9000), D), {"turns": 2}, "separate", id="a tenant's only prompt has its turn"),
        pytest.param((queue(9000), D), {"turns": 3}, "busy", id="behind one of each other tenant"),
        pytest.param((queue(900), D), {"turns": 60}, "separate", id="no longer than the queue"),
        # a prompt of one second, behind one like it, at either
        pytest.param((queue(9000), LATE), {"turns": 2, "waited": 1.0}, "separate", id="soon at either"),
        # as in a rollout
        pytest.param((queue(9000), NEXT, D), {}, "busy", id="an idle one of another KV revision"),
        # half of each step is left, so a prompt of 1,000 tokens and the 50 before it take 2.1 s there
        pytest.param((queue(1100), TAKEN), {}, "separate", id="less time there"),
        pytest.param((queue(1200), TAKEN), {}, "busy", id="but sooner"),
        pytest.param((queue(9000), replace(TAKEN, running=7)), {}, "separate", id="no time is left"),
        pytest.param((queue(9000), replace(TAKEN, running=8)), {}, "separate", id="less than none"),
    ],
)
def test_a_decode_worker_computes_what_prefill_workers_would_have_too_late(workers, options, where):
    route = routed(*workers, **options)
    assert (route.prefill_at, route.prefill is None) == (where, where == "busy")


def test_the_route_says_how_much_sooner_it_is():
    assert "local: 1.00 s, on prefill workers 4.00 s" in routed(queue(3000), D).why


def test_a_prefill_worker_that_would_be_in_time_is_not_busy_though_another_is_cheaper():
    """p0 knows most of the prompt, so it is the cheaper one in spite of its queue."""
    route = routed(queue(1600), worker("p1", queue_tokens=500), D, matches={"p0": 56}, waited=0.4)
    assert (route.prefill_at, route.prefill) == ("separate", "p0")


@pytest.mark.parametrize("unfit", [{"prefill_cost": SLOW}, {"queue_tokens": 100}, {"free_blocks": 10}])
def test_the_one_that_is_done_first_and_has_room_computes_it(unfit):
    assert routed(queue(3000), worker("d0", **unfit), worker("d1"), worker("d2", **unfit)).decode == "d1"
