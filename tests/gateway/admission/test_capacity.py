"""What the fleet can take on: how fast it prefills, how long its queues may be, where decoding workers have room."""

from typing import Any

import pytest

from legato_gateway.admission.capacity import Capacity
from legato_gateway.admission.limits import AdmissionLimits
from legato_gateway.routing.filters import Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView

ROLES: dict[str, Any] = {"p": "prefill", "d": "decode", "u": "unified"}


def worker(name: str, **overrides: Any) -> WorkerView:
    """Its name begins with the first letter of its role; 100 blocks of 10 tokens, 1,000 tokens a second."""
    fields = {"num_blocks": 100, "free_blocks": 100, "prefill_rate": 1000.0, "max_length": 5000, **overrides}
    return WorkerView(name, ROLES[name[0]], "e", "r", 10, **fields)


def capacity(*workers: WorkerView, backlog_seconds: float = 2.0) -> Capacity:
    return Capacity(FleetSnapshot(workers), AdmissionLimits(backlog_seconds=backlog_seconds, min_backlog_tokens=100))


def takes(fleet: Capacity, tokens: int) -> bool:
    return fleet.take(Need("r", tokens, 10), tokens, {})


@pytest.mark.parametrize(("slots", "most"), [((), None), ((8,), 8), ((8, 16), 16), ((8, 0), None)])
def test_choices_that_can_run_at_once(slots: tuple[int, ...], most: int | None) -> None:
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
def test_prompts_are_computed_by_all_workers_that_prefill_now(others: tuple[WorkerView, ...], seconds: float) -> None:
    assert capacity(worker("p0"), *others).seconds(1000) == pytest.approx(seconds)


def test_where_all_workers_fail_often_all_of_them_count() -> None:
    assert capacity(worker("p0", broken=True), worker("p1", broken=True)).seconds(1000) == pytest.approx(0.5)


def test_queues_of_prompts_grow_up_to_their_limit_in_seconds() -> None:
    fleet = capacity(worker("u0", queue_tokens=1500), backlog_seconds=2.0)
    assert not takes(fleet, 501)
    assert takes(fleet, 500)
    assert not takes(fleet, 1)


def test_a_long_prompt_goes_to_an_idle_worker_however_busy_the_others_are() -> None:
    fleet = capacity(worker("u0", queue_tokens=9000), worker("u1"), backlog_seconds=2.0)
    assert takes(fleet, 900)
    assert takes(fleet, 900)  # 1.8 s at u1, which is still the shortest queue
    assert not takes(fleet, 300)


def test_an_idle_worker_takes_a_prompt_of_any_length() -> None:
    fleet = capacity(worker("u0"), backlog_seconds=0.5)
    assert takes(fleet, 900)
    assert not takes(fleet, 1)


def test_the_shortest_queue_is_the_one_that_is_done_first() -> None:
    fast = worker("u0", queue_tokens=1500, prefill_rate=8000.0, num_blocks=1000, free_blocks=1000)
    fleet = capacity(fast, worker("u1", queue_tokens=900), backlog_seconds=1.0)
    assert [takes(fleet, 990) for _ in range(7)] == [True] * 6 + [False]


def test_queues_may_have_their_least_length_together() -> None:
    """A fleet of slow workers takes no more than one of them would."""
    fleet = capacity(*(worker(f"u{i}", queue_tokens=10, prefill_rate=1.0) for i in range(4)), backlog_seconds=2.0)
    assert not takes(fleet, 16)
    assert [takes(fleet, 15) for _ in range(5)] == [True] * 4 + [False]


def test_a_sequence_takes_its_blocks_at_the_worker_with_most_room() -> None:
    """Else the last one here would find none."""
    fleet = capacity(worker("d0", free_blocks=20), worker("d1", free_blocks=30))
    assert [takes(fleet, tokens) for tokens in (80, 200, 190, 1)] == [True, True, True, False]


def test_blocks_of_paused_sequences_can_be_had() -> None:
    """Their clients read too slowly; the worker preempts them for others."""
    fleet = capacity(worker("u0", free_blocks=2, cached_blocks=3, paused_blocks=10))
    assert [takes(fleet, 130), takes(fleet, 1)] == [True, False]


def test_a_worker_takes_no_more_sequences_than_it_said() -> None:
    fleet = capacity(worker("u0", credits=2))
    assert [takes(fleet, 10) for _ in range(3)] == [True, True, False]
