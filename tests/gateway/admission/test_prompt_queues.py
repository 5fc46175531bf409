"""When decode workers help with prompts, and with how many."""

from typing import Any

import pytest

from legato_gateway.admission.capacity import Capacity
from legato_gateway.admission.limits import AdmissionLimits
from legato_gateway.routing.choose import Policy, Route, choose
from legato_gateway.routing.filters import Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.scorers import Objectives
from legato_protocol.load import DecodeCoefficients

ROLES: dict[str, Any] = {"p": "prefill", "d": "decode", "u": "unified"}
GOAL = Objectives(ttft=4.0, tpot=0.1)


def worker(name: str, **overrides: Any) -> WorkerView:
    """1,000 prompt tokens a second."""
    fields = {"address": name.encode(), "free_blocks": 1000, "prefill_rate": 1000.0, **overrides}
    return WorkerView(name, ROLES[name[0]], "e", "r", 10, 1000, 9000, **fields)


def capacity(*workers: WorkerView, held: int = 0, goal: Objectives | None = GOAL) -> Capacity:
    return Capacity(FleetSnapshot(workers), AdmissionLimits(min_backlog_tokens=100, objectives=goal), held)


def takes(fleet: Capacity, tokens: int) -> bool:
    return fleet.take(Need("r", tokens, 10), tokens, {})


FULL = worker("p0", queue_tokens=2000)


@pytest.mark.parametrize(("held", "helps"), [(2000, False), (2001, True)])
def test_decode_workers_help_when_not_all_that_waits_is_computed_in_time(held: int, helps: bool) -> None:
    """2,000 queued tokens and what is held, at 1,000 a second: within four seconds, or not."""
    assert takes(capacity(FULL, worker("d0"), held=held), 500) is helps


def test_without_objectives_they_do_not() -> None:
    assert not takes(capacity(FULL, worker("d0"), held=9000, goal=None), 500)


def test_queues_of_prefill_workers_are_filled_first() -> None:
    fleet = capacity(worker("p0", queue_tokens=1000), worker("d0", queue_tokens=1000), held=9000)
    assert [takes(fleet, 1000) for _ in range(3)] == [True, True, False]


def test_their_queues_are_as_long_as_what_they_compute_in_two_seconds() -> None:
    """Half of each step of 0.1 s is left beside two sequences, so 1,000 tokens."""
    half = DecodeCoefficients(per_step=0.03, per_row=0.01, per_context=0.0)
    decode = worker("d0", running=2, decode_cost=half, queue_tokens=400)
    assert not takes(capacity(FULL, decode, held=9000), 601)
    assert takes(capacity(FULL, decode, held=9000), 600)


def test_one_that_has_no_time_left_helps_with_nothing() -> None:
    whole = DecodeCoefficients(per_step=0.1, per_row=0.0, per_context=0.0)
    assert not takes(capacity(FULL, worker("d0", running=1, decode_cost=whole), held=9000), 1)


@pytest.mark.parametrize("step", [0.0, 0.02, 0.06, 0.08, 0.09, 0.099])
def test_what_starts_as_a_decode_worker_helps_is_sent_to_it(step: float) -> None:
    """Two seconds are queued at the prefill worker, and routing asks who is sooner."""
    decode = worker("d0", running=1, decode_cost=DecodeCoefficients(per_step=step, per_row=0.0, per_context=0.0))
    need, policy = Need("r", 500, 10, behind=9000), Policy(local_prefill_below_tokens=0, objectives=GOAL)
    route = choose(need, FleetSnapshot((FULL, decode)), {}, policy)
    assert isinstance(route, Route)
    assert takes(capacity(FULL, decode, held=9000), 500) is (route.decode == "d0" and route.prefill is None)


def test_the_one_that_helps_has_room_for_the_sequence() -> None:
    busy = worker("d1", queue_tokens=2000)
    assert not takes(capacity(FULL, worker("d0", free_blocks=10), busy, held=9000), 500)
    assert takes(capacity(FULL, worker("d0", free_blocks=60), busy, held=9000), 500)


def test_what_they_compute_counts_for_when_a_prompt_is_done() -> None:
    """2,000 queued tokens and 3,000 more, at 1,000 a second, and at 2,000 where one helps."""
    assert capacity(FULL, worker("d0"), held=2000).seconds(3000) == pytest.approx(5.0)
    assert capacity(FULL, worker("d0"), held=2001).seconds(3000) == pytest.approx(2.5)


def test_queues_of_decode_workers_make_nobody_wait_longer() -> None:
    """5,000 tokens at 1,000 a second. The decode worker has as many of its own, and a tenth of its time."""
    cost = DecodeCoefficients(per_step=0.09, per_row=0.0, per_context=0.0)
    decode = worker("d0", running=1, decode_cost=cost, queue_tokens=9000)
    assert capacity(FULL, decode, held=9000).seconds(3000) == pytest.approx(5.0)


def test_where_decode_workers_compute_all_prompts_they_help_nobody() -> None:
    assert capacity(worker("d0"), held=9000).seconds(3000) == pytest.approx(3.0)


def test_prompts_queue_only_where_nobody_can_help() -> None:
    assert capacity(FULL, worker("d0", queue_tokens=2000), held=9000).prompts_queue(1)
    assert not capacity(FULL, worker("d0"), held=9000).prompts_queue(500)


def test_unified_workers_are_no_helpers_of_prefill_workers() -> None:
    assert not takes(capacity(FULL, worker("u0"), held=9000), 500)
