"""The fleet's capacity: speed of prefill, length of its queues, room on decode workers, and when these help with
prompts."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.admission import worker

from legato_gateway.admission.capacity import Capacity
from legato_gateway.admission.limits import AdmissionLimits
from legato_gateway.routing.choose import Policy, Route, choose
from legato_gateway.routing.filters import Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.scorers import Objectives
from legato_protocol.wire.load import DecodeCoefficients

GOAL = Objectives(ttft=4.0, tpot=0.1)
LARGE: Any = {"num_blocks": 1000, "free_blocks": 1000, "max_length": 9000, "address": b"w"}


def capacity(*workers: WorkerView, held: int = 0, goal: Objectives | None = None, seconds: float = 2.0) -> Capacity:
    limits = AdmissionLimits(backlog_seconds=seconds, min_backlog_tokens=100, objectives=goal)
    return Capacity(FleetSnapshot(workers), limits, held)


def takes(fleet: Capacity, tokens: int) -> bool:
    return fleet.take(Need("r", tokens, 10), tokens, {})


@pytest.mark.parametrize(("slots", "most"), [((), None), ((8,), 8), ((8, 16), 16), ((8, 0), None)])
def test_choices_that_can_run_at_once(slots, most):
    fleet = capacity(worker("p0", slots=100), *(worker(f"d{i}", slots=count) for i, count in enumerate(slots)))
    assert fleet.most_choices == most


@pytest.mark.parametrize(
    ("others", "seconds"),
    [
        ((), 1.0),
        ((worker("p1"),), 0.5),
        ((worker("p1", queue_tokens=500),), 0.75),
        ((worker("p1", prefill_rate=0.0),), 0.5),  # not measured yet: as fast as the others
        ((worker("p1", queue_tokens=500, ready=False),), 1.0),
        ((worker("p1", queue_tokens=500, draining=True),), 1.0),
        ((worker("p1", queue_tokens=500, broken=True),), 1.0),
        ((worker("d0", queue_tokens=500),), 1.0),  # computes no prompts while others do
    ],
)
def test_prompts_are_computed_by_all_workers_that_prefill_now(others, seconds):
    assert capacity(worker("p0"), *others).seconds(1000) == pytest.approx(seconds)
    broken = [worker(name, broken=True) for name in ("p0", "p1")]
    assert capacity(*broken).seconds(1000) == pytest.approx(0.5), "where all fail often, all of them count"


FAST = worker("u0", queue_tokens=1500, prefill_rate=8000.0, num_blocks=1000, free_blocks=1000)
ROOMS = [worker("d0", free_blocks=20), worker("d1", free_blocks=30)]
PAUSED = worker("u0", free_blocks=2, cached_blocks=3, paused_blocks=10)
SLOW = [worker(f"u{i}", queue_tokens=10, prefill_rate=1.0) for i in range(4)]


@pytest.mark.parametrize(
    ("workers", "seconds", "offers"),
    [
        pytest.param([worker("u0", queue_tokens=1500)], 2.0, {501: "-", 500: "+", 1: "-"}, id="up to their limit"),
        # 1.8 s at u1, which is still the shortest queue
        pytest.param([worker("u0", queue_tokens=9000), worker("u1")], 2.0, {900: "++", 300: "-"}, id="an idle worker"),
        pytest.param([worker("u0")], 0.5, {900: "+", 1: "-"}, id="an idle worker takes a prompt of any length"),
        pytest.param([FAST, worker("u1", queue_tokens=900)], 1.0, {990: "++++++-"}, id="to the one that is done first"),
        # a fleet of slow workers takes no more than one of them would
        pytest.param(SLOW, 2.0, {16: "-", 15: "++++-"}, id="their least length together"),
        pytest.param([worker("u0", credits=2)], 2.0, {10: "++-"}, id="as many sequences as it said"),
        # or else the last one here would find none
        pytest.param(ROOMS, 2.0, {80: "+", 200: "+", 190: "+", 1: "-"}, id="blocks at the worker with most room"),
        # their clients read too slowly; the worker preempts them for others
        pytest.param([PAUSED], 2.0, {130: "+", 1: "-"}, id="blocks of paused sequences can be had"),
        pytest.param(
            [worker("u0", slots=16, running=15)], 2.0, {1: "+++-"}, id="slots, and an eighth that waits there"
        ),
    ],
)
def test_prompts_and_sequences_are_taken_as_there_is_room(workers, seconds, offers):
    """Offers of so many tokens, one after the other, and whether each is taken."""
    fleet = capacity(*workers, seconds=seconds)
    for tokens, expected in offers.items():
        assert "".join("+" if takes(fleet, tokens) else "-" for _ in expected) == expected, tokens


FULL = worker("p0", queue_tokens=2000, **LARGE)
ALSO_FULL = worker("d1", queue_tokens=2000, **LARGE)
IDLE = worker("d0", **LARGE)
HALF = DecodeCoefficients(per_step=0.025, per_row=0.01, per_context=0.0)  # of 0.9 x 0.1 s a step, with two sequences
BUSY = worker("d0", running=2, decode_cost=HALF, queue_tokens=400, **LARGE)


def decoder(per_step: float, **overrides: Any) -> WorkerView:
    return worker("d0", running=1, decode_cost=DecodeCoefficients(per_step, 0.0, 0.0), **LARGE | overrides)


@pytest.mark.parametrize(
    ("workers", "held", "tokens", "taken"),
    [
        # 2,000 queued tokens and what is held, at 1,000 a second: within four seconds, or not
        ((FULL, IDLE), 2000, 500, "-"),
        ((FULL, IDLE), 2001, 500, "+"),
        ((FULL, worker("u0", **LARGE)), 9000, 500, "-"),  # unified workers are no helpers of prefill workers
        # queues of prefill workers are filled first
        ((worker("p0", queue_tokens=1000, **LARGE), worker("d0", queue_tokens=1000, **LARGE)), 9000, 1000, "++-"),
        # theirs are as long as what they compute in two seconds: half of it beside two sequences, so 1,000 tokens
        ((FULL, BUSY), 9000, 601, "-"),
        ((FULL, BUSY), 9000, 600, "+"),
        ((FULL, decoder(0.1)), 9000, 1, "-"),  # no time is left
        ((FULL, replace(IDLE, shares_cores=True)), 9000, 500, "-"),
        # the one that helps has room for the sequence
        ((FULL, worker("d0", **LARGE | {"free_blocks": 10}), ALSO_FULL), 9000, 500, "-"),
        ((FULL, worker("d0", **LARGE | {"free_blocks": 60}), ALSO_FULL), 9000, 500, "+"),
    ],
)
def test_decode_workers_help_when_not_all_that_waits_is_computed_in_time(workers, held, tokens, taken):
    fleet = capacity(*workers, held=held, goal=GOAL)
    assert "".join("+" if takes(fleet, tokens) else "-" for _ in taken) == taken
    assert len(taken) > 1 or not takes(capacity(*workers, held=held), tokens), "without objectives they do not"


@pytest.mark.parametrize("step", [0.0, 0.02, 0.06, 0.08, 0.09, 0.099])
def test_what_starts_as_a_decode_worker_helps_is_sent_to_it(step):
    """Two seconds are queued at the prefill worker, and routing asks who is sooner."""
    need, policy = Need("r", 500, 10, behind=9000), Policy(local_prefill_below_tokens=0, objectives=GOAL)
    route = choose(need, FleetSnapshot((FULL, decoder(step))), {}, policy)
    assert isinstance(route, Route)
    helps = takes(capacity(FULL, decoder(step), held=9000, goal=GOAL), 500)
    assert helps is (route.decode == "d0" and route.prefill is None)


@pytest.mark.parametrize(
    ("workers", "held", "seconds"),
    [
        # 2,000 queued tokens and 3,000 more, at 1,000 a second, and at 2,000 where one helps
        ((FULL, IDLE), 2000, 5.0),
        ((FULL, IDLE), 2001, 2.5),
        # the decode worker has as many of its own, and a tenth of its time: its queue makes nobody wait longer
        ((FULL, decoder(0.09, queue_tokens=9000)), 9000, 5.0),
        ((IDLE,), 9000, 3.0),  # where decode workers compute all prompts they help nobody
    ],
)
def test_what_they_compute_counts_for_when_a_prompt_is_done(workers, held, seconds):
    assert capacity(*workers, held=held, goal=GOAL).seconds(3000) == pytest.approx(seconds)


def test_prompts_queue_only_where_nobody_can_help():
    assert capacity(FULL, worker("d0", queue_tokens=2000, **LARGE), held=9000, goal=GOAL).prompts_queue(1)
    assert not capacity(FULL, IDLE, held=9000, goal=GOAL).prompts_queue(500)
