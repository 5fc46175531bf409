"""Smaller requests start before one that waits for room, and never keep it waiting for ever."""

from dataclasses import replace

import pytest
from tests.support.admission import BUSY, FREE, LONG, held, room, snapshot, ticket

from legato_gateway.admission.limits import AdmissionLimits
from legato_gateway.admission.queue import TRIES, Admission
from legato_gateway.admission.ticket import Admit, Hold, Ticket
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView


def blocked(*others: Ticket, first: Ticket = LONG) -> Admission:
    """The first one waits for room in vain since 0."""
    queue = held(first, *others)
    assert queue.next(BUSY, 0) == []
    return queue


@pytest.mark.parametrize("now", [0, 9.9])
def test_smaller_requests_start_while_the_first_one_waits_for_room(now):
    queue = blocked(*(ticket(f"small{i}", tokens=50) for i in range(3)))
    assert queue.next(room(12), now) == ["small0", "small1"]
    assert queue.obstacle == "decode_room", "that of the first one"
    assert isinstance(queue.offer(ticket("new", tokens=10), room(6), now), Hold), "small2 is before it, and fits"
    assert queue.next(room(8), now) == ["small2", "new"]
    assert isinstance(queue.offer(ticket("newer", tokens=50), room(6), now), Admit)
    assert queue.next(room(51), now) == ["long"]


def passed(now: float, *later: Ticket) -> Admission:
    """Three small requests have passed a long one; `later` ones come `now`."""
    queue = blocked(*(ticket(f"small{i}", tokens=150) for i in range(3)))
    assert queue.next(room(48), 9.9) == ["small0", "small1", "small2"]
    for each in later:
        assert isinstance(queue.offer(each, BUSY, now), Hold)
    return queue


def test_what_frees_up_is_for_the_first_one_once_its_time_is_up():
    """Neither those that wait nor new ones pass it any more, and none comes before it, whatever the order."""
    queue = passed(9.9, ticket("urgent", tokens=50, deadline=11), ticket("top", tokens=50, priority=5))
    assert queue.next(room(50), 10) == []
    assert queue.obstacle == "decode_room"
    assert isinstance(queue.offer(ticket("new", tokens=10), room(50), 10), Hold)
    assert queue.next(room(51), 11) == ["long"]
    assert queue.next(room(51), 11) == ["top", "urgent", "new"]


def test_those_that_passed_may_have_half_of_what_the_first_one_leaves_of_a_worker():
    """For ever: however many small ones come, it starts at the latest when those that ran before it have ended."""
    queue = passed(10, *(ticket(f"late{i}", tokens=50) for i in range(3)))
    queue.finished("small0", 0)
    assert queue.next(room(20), 10) == [], "300 tokens of 490 run already"
    queue.finished("small1", 0)
    assert queue.next(room(20), 10) == ["late0"], "240 of 490 may"
    queue.progress("small2", 40)
    queue.finished("late0", 0)
    assert queue.next(room(20), 10) == ["late1"]
    queue.cancel("late1")
    queue.progress("small2", 50)
    assert queue.next(room(20), 10) == [], "what they make counts, too"


def test_nobody_passes_who_was_served_more_than_the_first_one_would_have_been():
    """Else a tenant of small requests would have all service, but for one large request of the other's at a time."""
    small = [ticket(f"small{i}", "b", tokens=100) for i in range(20)]
    queue = blocked(ticket("own", "a", tokens=100), *small, first=ticket("long", "a", tokens=500))
    started = [id for _ in range(20) for id in queue.next(room(11), 1)]
    assert started == ["own", *(f"small{i}" for i in range(7))]


def test_no_level_passes_that_is_ahead_of_its_share():
    queue = blocked(*(ticket(f"low{i}", tokens=100, priority=-1) for i in range(20)))
    assert len([id for _ in range(20) for id in queue.next(room(11), 1)]) == 6


@pytest.mark.parametrize(("large", "starts"), [(TRIES, False), (TRIES - 1, True)])
def test_a_pass_tries_few_requests_without_room(large, starts):
    tenants = [ticket(f"large{i}", f"t{i}", tokens=600) for i in range(large)]
    queue = held(ticket("first", "t", tokens=600), *tenants, ticket("small", "z", tokens=10))
    assert queue.next(room(20), 0) == (["small"] if starts else [])


def test_a_tenant_with_many_large_requests_leaves_tries_for_others():
    queue = held(*(ticket(f"large{i}", "a", tokens=600) for i in range(50)), ticket("small", "b", tokens=10))
    assert queue.next(room(20), 0) == ["small"]


def test_nothing_passes_one_that_waits_for_prompts_ahead_of_it():
    """Prompts ahead of it are computed soon: small ones would keep large ones from ever starting."""
    limits = AdmissionLimits(backlog_seconds=1.0, min_backlog_tokens=100)
    queue = held(ticket("long", tokens=500), ticket("small", tokens=10), limits=limits)
    assert queue.next(snapshot(queue_tokens=600), 0) == []
    assert queue.obstacle == "prefill"
    assert queue.next(snapshot(queue_tokens=500), 0) == ["long"]


def test_one_whose_only_worker_is_away_holds_up_nobody():
    small = WorkerView("u1", "unified", "e", "r", 10, 20, 5000, free_blocks=20, prefill_rate=1000.0)
    fleet = FleetSnapshot((replace(FREE.workers[0], ready=False), small))
    queue = held(LONG, ticket("small", tokens=100), ticket("also", tokens=90))
    for now, id in ((0, "small"), (100, "also")):
        assert queue.next(fleet, now) == [id]
        assert queue.obstacle == "no_worker"
    assert queue.next(FREE, 100) == ["long"]


def test_a_reservation_ends_with_its_request():
    queue = blocked(ticket("next", tokens=500), ticket("small", tokens=300))
    queue.cancel("long")
    queue.check_integrity()
    assert queue.next(room(31), 11) == ["small"], "the next one's time has begun just now"


Request = tuple[float, int, float]  # when it comes, prompt tokens, seconds for which it runs


def waits(requests: dict[str, Request]) -> dict[str, float]:
    """Seconds that each request waits for a worker that nobody else uses."""
    queue = Admission()
    coming = sorted(requests, key=lambda id: requests[id][0])
    running: dict[str, tuple[int, float]] = {}
    waited: dict[str, float] = {}
    for now in (step / 10 for step in range(3000)):
        for id in [id for id, (_, until) in running.items() if until <= now]:
            del running[id]
            queue.finished(id, 0)
        free = 100 - sum(blocks for blocks, _ in running.values())
        started = []
        while coming and requests[coming[0]][0] <= now:
            tokens = requests[coming[0]][1]
            if isinstance(queue.offer(ticket(coming[0], tokens=tokens), room(free), now), Admit):
                free -= tokens // 10 + 1
                started.append(coming[0])
            del coming[0]
        for id in (*started, *queue.next(room(free), now)):
            came, tokens, seconds = requests[id]
            waited[id] = now - came
            running[id] = (tokens // 10 + 1, now + seconds)
            free -= 0 if id in started else tokens // 10 + 1
    return waited


def test_short_requests_keep_starting_while_a_long_one_waits_for_another_long_one():
    """Before, the short ones waited until the first long one had ended, too: for up to 59 s."""
    short = {f"short{i}": (2.0 * i, 50, 5.0) for i in range(100)}
    waited = waits({"old": (0.0, 450, 60.0), "long": (1.0, 600, 60.0), **short})
    assert waited["long"] == pytest.approx(59, abs=1), "not a second later than without the short ones"
    assert max(waited[id] for id in short) <= 1


def test_a_flood_of_short_requests_keeps_no_long_one_from_starting():
    """It waits only for the requests that ran when its time was up."""
    short = {f"short{i}": (0.1 * i, 50, 5.0) for i in range(1000)}
    assert 10 < waits({"long": (1.0, 800, 10.0), **short})["long"] <= 10 + 5 + 1
