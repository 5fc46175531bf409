"""The order in which waiting requests start."""

import pytest
from scheduled_worker import ask

from legato_engine.scheduler.handoff.transfers import OutgoingState, OutgoingTransfer
from legato_engine.scheduler.queueing.queue import PATIENCE_LIMIT, PATIENCE_WEIGHT, Order, Tier, WaitingQueue
from legato_engine.scheduler.requests.limits import SchedulerLimits


def order(role="unified"):
    return Order(SchedulerLimits(role, block_size=4, max_length=64, aging=5.0))


@pytest.fixture
def make_request():
    def make(tokens=6, granted=False, **fields):
        request = ask(tokens).request(**{"uncached": tokens} | fields)
        if granted:
            request.outgoing = OutgoingTransfer(request, room=1, attempt=1, state=OutgoingState.GRANTED)
        return request

    return make


@pytest.mark.parametrize(
    ("fields", "tier"),
    [
        ({}, Tier.FRESH),
        ({"farthest": 5}, Tier.PREEMPTED),
        ({"farthest": 5, "room": 1}, Tier.FRESH),  # nobody waits for its tokens before it is granted
        ({"granted": True, "room": 1}, Tier.GRANTED),
        ({"granted": True, "farthest": 5}, Tier.GRANTED),
    ],
)
def test_granted_ones_go_first_then_those_that_ran(make_request, fields, tier):
    assert order().key(make_request(**fields), 100.0)[0] == tier


@pytest.mark.parametrize("role", ["decode", "unified"])
def test_a_step_of_priority_is_worth_some_seconds_of_waiting(make_request, role):
    key = order(role).key
    assert key(make_request(arrival=7.0, priority=1), 100.0)[1] == 2.0
    assert key(make_request(arrival=7.0, priority=-2, tokens=40), 100.0)[1] == 17.0


def test_prefill_workers_add_the_time_it_takes_and_some_of_its_patience(make_request):
    key = order("prefill").key
    request = make_request(arrival=7.0, uncached=30, deadline=27.0)
    assert key(request, 10.0)[1] == pytest.approx(7 + 3 + 20 * PATIENCE_WEIGHT)
    patient = make_request(arrival=7.0, uncached=0, deadline=1e6, priority=1)
    assert key(patient, 10.0)[1] == pytest.approx(2 + PATIENCE_LIMIT * PATIENCE_WEIGHT)


def test_the_first_to_come_goes_first_among_equals(make_request):
    queue = WaitingQueue(order())
    requests = [make_request(number=number) for number in (3, 1, 2)]
    for request in requests:
        queue.push(request)
    assert ([request.number for request in queue], queue.tokens) == ([1, 2, 3], 18)
    queue.remove(requests[2])
    assert ([request.number for request in queue], len(queue), queue.tokens) == ([1, 3], 2, 12)
    assert [request in queue for request in requests] == [True, True, False]
    with pytest.raises(KeyError):
        queue.remove(requests[2])


def test_of_two_with_one_key_the_right_one_is_removed(make_request):
    queue = WaitingQueue(order())
    first, second, third = make_request(), make_request(uncached=9), make_request()
    for request in (first, second, third):
        queue.push(request)
    queue.remove(second)
    assert (list(queue), queue.tokens) == ([first, third], 12)
    fourth = make_request()
    queue.push(fourth)
    queue.remove(fourth)
    assert list(queue) == [first, third]


@pytest.mark.parametrize(
    ("tokens", "seconds", "speed"), [(0, 1.0, 1000.0), (10, 0.0, 1000.0), (500, 1.0, 900.0), (3000, 2.0, 1100.0)]
)
def test_a_step_moves_the_measured_speed_by_a_fifth(tokens, seconds, speed):
    queue = WaitingQueue(order())
    queue.measure(tokens, seconds)
    assert queue.tokens_per_second == pytest.approx(speed)
