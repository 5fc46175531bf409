"""The share of a canary: which revision a request prefers, and when the other one has to serve it."""

from dataclasses import replace
from typing import Any

import pytest

from legato_gateway import policy
from legato_gateway.routing.canary_share import LEAST_BACKLOG, RevisionChoice, choose_revision, why_unable
from legato_gateway.routing.choose import Policy, Route
from legato_gateway.routing.filters import Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_protocol.wire.canary import Canary

ROLES: Any = {"p": "prefill", "d": "decode"}
BOTH = Canary({"prefill": "new", "decode": "new"}, 10)


def worker(name: str, new: bool | None) -> WorkerView:
    view = WorkerView(name, ROLES[name[0]], "e", "r", 16, 1000, 8000, address=name.encode())
    return replace(view, free_blocks=1000, prefill_rate=1e3, new_revision=new)


P, OLD_P, NEW_P = worker("p0", None), worker("p0", False), worker("p1", True)
OLD_D, NEW_D = worker("d0", False), worker("d1", True)
LONG = 3 * LEAST_BACKLOG


def share(canary, *workers):
    chosen = [choose_revision(canary, FleetSnapshot(workers), f"request-{i}") for i in range(1000)]
    return sum(each.new is True for each in chosen) / 10


@pytest.mark.parametrize(
    ("weight", "olds", "percent"),
    [
        (0, (OLD_P, OLD_D), 0),
        (10, (OLD_P, OLD_D), 10),
        (50, (OLD_P, OLD_D), 50),
        (100, (OLD_P, OLD_D), 50),
        (50, (OLD_P, OLD_P, OLD_D), 33.3),
        (50, (OLD_P, OLD_D, OLD_D, OLD_D), 25),
        (50, (OLD_P, OLD_D, replace(OLD_D, ready=False)), 50),
    ],
)
def test_the_new_revision_gets_its_weight_but_no_more_load_for_a_worker(weight, olds, percent):
    canary = Canary(BOTH.revisions, weight)
    assert share(canary, *olds, NEW_P, NEW_D) == pytest.approx(percent, abs=3)


@pytest.mark.parametrize(
    ("canary", "workers", "choice", "obstacle"),
    [
        (BOTH, (OLD_P, OLD_D), False, "no usable prefill worker (none is connected)"),
        (BOTH, (OLD_P, OLD_D, NEW_P), False, "no usable decode worker (none is connected)"),
        (BOTH, (OLD_P, OLD_D, NEW_P, replace(NEW_D, draining=True)), False, "no usable decode worker (d1)"),
        (BOTH, (OLD_P, OLD_D, replace(NEW_P, ready=False), NEW_D), False, "no usable prefill worker (p1)"),
        (BOTH, (OLD_P, OLD_D, replace(NEW_P, queue_tokens=LONG), NEW_D), False, "every prefill worker has too many"),
        (BOTH, (OLD_P, replace(OLD_D, broken=True), NEW_P, NEW_D), True, None),
        (BOTH, (OLD_P, NEW_D), None, "no usable prefill worker"),
        (Canary({"decode": "new"}, 10), (P, OLD_D), False, "no usable decode worker"),
    ],
)
def test_a_revision_that_cannot_serve_leaves_requests_to_the_other(canary, workers, choice, obstacle):
    assert choose_revision(canary, FleetSnapshot(workers), "r") == RevisionChoice(choice)
    why = why_unable(canary, FleetSnapshot(workers), new=True)
    assert why == obstacle or (why or "").startswith(obstacle)


def test_an_unchanged_pool_serves_both_revisions():
    assert share(Canary({"decode": "new"}, 20), P, OLD_D, NEW_D) == pytest.approx(20, abs=3)


@pytest.mark.parametrize(
    ("new", "workers", "pair"),
    [
        (True, (OLD_P, OLD_D, NEW_P, NEW_D), ("p1", "d1")),
        (False, (OLD_P, OLD_D, NEW_P, NEW_D), ("p0", "d0")),
        (True, (P, OLD_D, NEW_D), ("p0", "d1")),
        (True, (OLD_P, OLD_D, NEW_P, replace(NEW_D, free_blocks=0)), ("p0", "d0")),
    ],
    ids=["new", "old", "shared prefill", "the new one is full"],
)
def test_a_pair_is_of_one_revision_as_long_as_that_has_room(new, workers, pair):
    need = Need("r", 320, 100, new_revision=new)
    route = policy.place(need, FleetSnapshot(workers), {}, Policy(local_prefill_below_tokens=0))
    assert isinstance(route, Route)
    assert (route.prefill, route.decode) == pair
