"""A tenant without a prompt at workers sends one though others have filled the queues there: it is computed in turn."""

import pytest
from tests.support.admission import snapshot, ticket, worker

from legato_gateway.admission.limits import AdmissionLimits
from legato_gateway.admission.queue import Admission
from legato_gateway.admission.ticket import Admit, Hold
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_gateway.routing.scorers import Objectives


def fleet(queued: int) -> FleetSnapshot:
    """A worker that has `queued` prompt tokens; 8,192 are usual, and so many are computed in 4 s."""
    return snapshot(queue_tokens=queued, prefill_rate=2048.0, num_blocks=9000, free_blocks=9000, max_length=20_000)


def offer(queue: Admission, id: str, tenant: str, queued: int = 8000) -> Admit | Hold:
    return queue.offer(ticket(id, tenant, 2000), fleet(queued), 0)  # type: ignore[return-value]


@pytest.fixture
def flooded() -> Admission:
    """One tenant has a prompt at the worker, whose queue is full, and one that waits for that here."""
    queue = Admission()
    offer(queue, "f0", "flood", 0)
    assert isinstance(offer(queue, "f1", "flood"), Hold)
    return queue


@pytest.mark.parametrize("ends", ["cancel", "finished", "progress"])
def test_its_first_prompt_does_not_wait_and_the_next_one_until_that_has_a_token_or_ended(flooded, ends):
    assert isinstance(offer(flooded, "l0", "light"), Admit)
    assert isinstance(offer(flooded, "l1", "light"), Hold)
    assert flooded.next(fleet(8000), 0) == []
    if ends == "cancel":
        flooded.cancel("l0")
    elif ends == "finished":
        flooded.finished("l0", 0)
    else:
        flooded.progress("l0", 1)
        flooded.progress("l0", 2)
    flooded.check_integrity()
    assert flooded.next(fleet(8000), 0) == ["l1"]
    flooded.check_integrity()


def test_queues_stay_bounded(flooded):
    assert isinstance(offer(flooded, "l0", "light", 15_000), Hold)
    assert flooded.next(fleet(15_000), 0) == []


def test_a_tenants_only_prompt_has_its_turn_among_all_who_have_some_and_its_second_one_has_not(flooded):
    offer(flooded, "l0", "light")
    assert flooded.turns("light") == 2
    offer(flooded, "l1", "light")
    assert "l1" in flooded.next(fleet(0), 0)
    assert flooded.turns("light") == 0
    queue = Admission()
    offer(queue, "a", "alone", 0)
    assert queue.turns("alone") == 0, "nor has that of the only tenant"


def test_what_is_held_tells_whether_decode_workers_help():
    """Two seconds of prompts are queued and one second more is held: not all of it is computed within the objective."""
    large = {"num_blocks": 9000, "free_blocks": 9000, "max_length": 20_000, "prefill_rate": 8192.0}
    workers = FleetSnapshot((worker("p0", queue_tokens=16_384, **large), worker("d0", **large)))
    queue = Admission(AdmissionLimits(objectives=Objectives(ttft=2.5, tpot=0.1)))
    for id in "ab":
        assert isinstance(queue.offer(ticket(id, tokens=4000), workers, 0), Hold)
    assert queue.next(workers, 0) == ["a", "b"]
