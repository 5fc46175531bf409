"""Who starts and who waits, and for what."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.admission import BUSY, FREE, LONG, held, room, snapshot, ticket

from legato_gateway.admission.limits import AdmissionLimits
from legato_gateway.admission.queue import Admission
from legato_gateway.admission.ticket import DEADLINE, Admit, Hold, Refuse
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView


def test_with_room_a_request_starts_at_once_and_without_it_waits():
    queue = Admission()
    assert isinstance(queue.offer(ticket("a"), FREE, 0), Admit)
    assert isinstance(queue.offer(ticket("b"), BUSY, 0), Hold)
    assert (queue.held, queue.held_tokens) == (1, 100)
    assert queue.next(BUSY, 0) == []
    assert queue.next(FREE, 0) == ["b"]
    assert (queue.held, queue.held_tokens) == (0, 0)


def test_the_only_worker_is_given_requests_though_it_failed_often():
    assert isinstance(Admission().offer(ticket("a"), snapshot(broken=True), 0), Admit)
    others = FleetSnapshot((*BUSY.workers, replace(FREE.workers[0], name="u1", broken=True)))
    assert isinstance(Admission().offer(ticket("a"), others, 0), Hold), "u0 is only full"


def test_one_snapshot_is_not_spent_twice():
    queue = held(*(ticket(str(i), tokens=300) for i in range(5)))
    assert queue.next(FREE, 0) == ["0", "1", "2"]


def test_a_long_prefill_queue_holds_requests_here():
    limits = AdmissionLimits(backlog_seconds=1.0, min_backlog_tokens=100)
    queue = Admission(limits)
    assert isinstance(queue.offer(ticket("a"), snapshot(queue_tokens=950), 0), Hold)
    assert queue.next(snapshot(queue_tokens=950), 0) == []
    assert queue.next(snapshot(queue_tokens=900), 0) == ["a"]


def test_without_workers_requests_wait_for_some():
    queue = Admission()
    assert isinstance(queue.offer(ticket("a"), FleetSnapshot(), 0), Hold)
    assert queue.next(FleetSnapshot(), 0) == []
    assert queue.next(FREE, 0) == ["a"]


def test_a_prefix_that_is_held_already_needs_no_room():
    queue = Admission()
    assert isinstance(queue.offer(ticket("new"), room(5), 0), Hold)
    queue.cancel("new")
    shared = [ticket(f"shared-{i}", uncached=30, matches={"u0": 8}) for i in range(2)]
    assert isinstance(queue.offer(shared[0], room(5), 0), Admit)
    assert isinstance(queue.offer(shared[1], room(2), 0), Hold)
    assert queue.next(room(3), 0) == ["shared-1"]


def test_the_last_token_is_computed_even_if_the_whole_prompt_is_held():
    whole = ticket("a", uncached=1, matches={"u0": 10})
    assert isinstance(Admission().offer(whole, room(1), 0), Hold)
    assert isinstance(Admission().offer(whole, room(2), 0), Admit)


def test_cancelled_requests_never_start():
    queue = held(ticket("a"), ticket("b"))
    queue.cancel("a")
    queue.cancel("unknown")
    assert queue.next(FREE, 0) == ["b"]
    queue.check_integrity()


@settings(max_examples=times(40), deadline=None)
@given(st.integers(0, 2**32))
def test_over_random_operations_nothing_is_lost_and_everything_starts(seed):
    source = random.Random(seed)
    queue = Admission(AdmissionLimits(max_held=40))
    waiting: set[str] = set()
    running: set[str] = set()
    for step in range(120):
        kind = source.random()
        if kind < 0.5:
            deadline, priority = source.choice([1e9, step + 1, step + 30]), source.randint(-3, 3)
            one = ticket(str(step), source.choice("abc"), source.randint(1, 400), deadline=deadline, priority=priority)
            decision = queue.offer(one, source.choice([FREE, BUSY, room(20)]), step)
            (running if isinstance(decision, Admit) else waiting).add(one.id)
            if isinstance(decision, Refuse):
                waiting.remove(one.id)
                assert decision.reason == DEADLINE or len(waiting) == 40
        elif kind < 0.75:
            started = queue.next(room(source.randint(0, 100)), step)
            assert set(started) <= waiting
            waiting -= set(started)
            running |= set(started)
        elif kind < 0.85 and waiting:
            gone = source.choice(sorted(waiting))
            waiting.remove(gone)
            queue.cancel(gone)
        elif running:
            done = source.choice(sorted(running))
            running.remove(done)
            queue.finished(done, source.randint(0, 50))
        queue.check_integrity()
        assert queue.held == len(waiting)
    while waiting:
        started = queue.next(room(60), 1000)
        assert started, "with room for the largest, somebody starts"
        waiting -= set(started)
    assert queue.held_tokens == 0


@settings(max_examples=times(20), deadline=None)
@given(st.integers(0, 2**32))
def test_backlogged_tenants_never_drift_apart(seed):
    """VTC's bound: while both wait, weighted service differs by no more than the largest request costs."""
    source = random.Random(seed)
    queue = Admission(AdmissionLimits(output_weight=2))
    costs: dict[str, tuple[str, int, int]] = {}
    for tenant in "ab":
        least, most_output = source.randint(51, 100), source.randint(0, 100)
        for i in range(60):
            prompt, output = source.randint(least, 100), source.randint(0, most_output)
            costs[f"{tenant}{i}"] = (tenant, prompt, output)
            queue.offer(ticket(f"{tenant}{i}", tenant, prompt), BUSY, 0)
    served, left = Counter({"a": 0, "b": 0}), Counter({"a": 60, "b": 60})
    while min(left.values()) > 0:
        (id,) = queue.next(room(11), 0)
        tenant, prompt, output = costs[id]
        queue.finished(id, output)
        served[tenant] += prompt + 2 * output
        left[tenant] -= 1
        assert abs(served["a"] - served["b"]) <= 100 + 2 * 100


def decoder(name: str = "d0", **overrides: Any) -> WorkerView:
    fields = {"num_blocks": 100, "free_blocks": 100, "max_length": 5000, **overrides}
    return WorkerView(name, "decode", "e", "r", 10, **fields)


def prefiller(queue_tokens: int = 0) -> WorkerView:
    return WorkerView("p0", "prefill", "e", "r", 10, 100, 5000, free_blocks=100, queue_tokens=queue_tokens)


@pytest.mark.parametrize(
    ("workers", "cause"),
    [
        ((), "no_worker"),
        ((prefiller(),), "no_worker"),
        ((prefiller(), decoder(ready=False)), "no_worker"),
        ((prefiller(), decoder(draining=True)), "no_worker"),
        ((prefiller(), decoder(credits=0)), "credits"),
        ((prefiller(), decoder(credits=0), decoder("d1", free_blocks=0)), "decode_room"),
        ((prefiller(20_000), decoder(free_blocks=0)), "decode_room"),  # prompts queue since nobody has room for them
        ((prefiller(20_000), decoder()), "prefill"),
        ((prefiller(20_000), decoder(max_length=50), decoder("d1", free_blocks=0)), "decode_room"),
    ],
)
def test_what_the_first_held_request_waits_for_is_known(workers, cause):
    queue, fleet = Admission(), FleetSnapshot(workers)
    assert queue.obstacle is None
    assert isinstance(queue.offer(ticket("a"), fleet, 0), Hold)
    assert queue.obstacle == cause
    assert queue.next(fleet, 1) == []
    assert queue.obstacle == cause


def test_the_obstacle_is_that_of_the_last_look():
    queue = held(ticket("a"))
    assert queue.obstacle == "decode_room"
    assert queue.next(snapshot(queue_tokens=20_000), 1) == []
    assert queue.obstacle == "prefill"
    assert queue.next(FleetSnapshot(), 2) == []
    assert queue.obstacle == "no_worker"
    assert queue.next(FREE, 3) == ["a"]
    assert queue.obstacle is None


def test_who_comes_later_does_not_change_what_the_first_waits_for():
    queue = held(LONG)
    assert queue.next(BUSY, 1) == []
    assert isinstance(queue.offer(ticket("b"), room(5), 1), Hold)
    assert queue.obstacle == "decode_room"
