"""A tenant without a prompt at workers sends one though others have filled the queues there: it is computed in turn."""

import pytest

from legato_gateway.admission.limits import AdmissionLimits
from legato_gateway.admission.queue import Admission
from legato_gateway.admission.ticket import Admit, Hold, Ticket
from legato_gateway.routing.filters import Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.scorers import Objectives


def fleet(queued: int, free: int = 1000) -> FleetSnapshot:
    """A worker that has `queued` prompt tokens; 8,192 are usual, and so many are computed in 4 s."""
    fields = {"num_blocks": 1000, "max_length": 20_000, "prefill_rate": 2048.0, "free_blocks": free}
    return FleetSnapshot((WorkerView("u0", "unified", "e", "r", 100, queue_tokens=queued, **fields),))


def ticket(id: str, tenant: str, tokens: int = 2000) -> Ticket:
    return Ticket(tenant, Need(id, tokens, 10), tokens, deadline=1e9)


@pytest.fixture
def flooded() -> Admission:
    """One tenant has a prompt at the worker, whose queue is full, and one that waits for that here."""
    queue = Admission()
    queue.offer(ticket("f0", "flood"), fleet(0), 0)
    assert isinstance(queue.offer(ticket("f1", "flood"), fleet(8000), 0), Hold)
    return queue


def test_the_first_prompt_of_another_tenant_does_not_wait_for_a_short_queue(flooded: Admission) -> None:
    assert isinstance(flooded.offer(ticket("l0", "light"), fleet(8000), 0), Admit)
    flooded.check_integrity()


def test_the_next_one_waits_until_that_has_a_token(flooded: Admission) -> None:
    flooded.offer(ticket("l0", "light"), fleet(8000), 0)
    assert isinstance(flooded.offer(ticket("l1", "light"), fleet(8000), 0), Hold)
    assert flooded.next(fleet(8000), 0) == []
    flooded.progress("l0", 1)
    flooded.progress("l0", 2)
    flooded.check_integrity()
    assert flooded.next(fleet(8000), 0) == ["l1"]


@pytest.mark.parametrize("ends", ["cancel", "finished"])
def test_or_until_that_has_ended(flooded: Admission, ends: str) -> None:
    flooded.offer(ticket("l0", "light"), fleet(8000), 0)
    flooded.offer(ticket("l1", "light"), fleet(8000), 0)
    flooded.cancel("l0") if ends == "cancel" else flooded.finished("l0", 0)
    assert flooded.next(fleet(8000), 0) == ["l1"]
    flooded.check_integrity()


def test_queues_stay_bounded(flooded: Admission) -> None:
    assert isinstance(flooded.offer(ticket("l0", "light"), fleet(15_000), 0), Hold)
    assert flooded.next(fleet(15_000), 0) == []


def test_a_tenants_only_prompt_has_its_turn_among_all_who_have_some(flooded: Admission) -> None:
    flooded.offer(ticket("l0", "light"), fleet(8000), 0)
    assert flooded.turns("light") == 2


def test_its_second_one_is_not(flooded: Admission) -> None:
    flooded.offer(ticket("l0", "light"), fleet(8000), 0)
    flooded.offer(ticket("l1", "light"), fleet(8000), 0)
    assert "l1" in flooded.next(fleet(0), 0)
    assert flooded.turns("light") == 0


def test_nor_is_that_of_the_only_tenant() -> None:
    queue = Admission()
    queue.offer(ticket("a", "alone"), fleet(0), 0)
    assert queue.turns("alone") == 0


def test_what_is_held_tells_whether_decode_workers_help() -> None:
    """Two seconds of prompts are queued and one second more is held: not all of it is computed within the objective."""
    prefill = WorkerView("p0", "prefill", "e", "r", 100, 1000, 20_000, prefill_rate=8192.0, queue_tokens=16_384)
    decode = WorkerView("d0", "decode", "e", "r", 100, 1000, 20_000, prefill_rate=8192.0, free_blocks=1000)
    snapshot = FleetSnapshot((prefill, decode))
    queue = Admission(AdmissionLimits(objectives=Objectives(ttft=2.5, tpot=0.1)))
    first, second = ticket("a", "alone", tokens=4000), ticket("b", "alone", tokens=4000)
    assert isinstance(queue.offer(first, snapshot, 0), Hold)
    assert isinstance(queue.offer(second, snapshot, 0), Hold)
    assert queue.next(snapshot, 0) == ["a", "b"]
