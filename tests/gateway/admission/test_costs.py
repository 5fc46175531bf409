"""What an offer and a turn cost, in lines of Python: however long the queue is, about the same."""

import sys
from typing import Any

import pytest
from tests.support.admission import BUSY, UNMEASURED, held, room, ticket


def lines_of(work: Any) -> int:
    """How many lines of Python run for it."""
    count = 0

    def trace(_frame: Any, event: str, _value: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_order_by_deadline_costs_a_lookup():
    def lines(tickets: int) -> int:
        queue = held(*(ticket(str(number), deadline=number % 50) for number in range(tickets)))
        return lines_of(lambda: (queue.offer(ticket("new", deadline=25), UNMEASURED, 0), queue.cancel("new")))

    lines(20)  # what is done once only
    assert lines(2000) == lines(20)


@pytest.mark.parametrize("tenant", ["t1", "another"])
def test_an_offer_costs_the_same_however_many_tenants_wait(tenant):
    def lines(tenants: int) -> int:
        queue = held(*(ticket(str(number), f"t{number}") for number in range(tenants)))
        return lines_of(lambda: queue.offer(ticket("new", tenant), BUSY, 0))

    lines(20)  # what is done once only
    assert lines(2000) == lines(20)


def test_a_turn_costs_the_same_however_many_tenants_wait():
    def lines(tenants: int) -> int:
        queue = held(*(ticket(str(number), f"t{number}") for number in range(tenants)))
        return lines_of(lambda: queue.next(room(11), 0))

    lines(20)  # what is done once only
    assert lines(2000) == lines(20)
