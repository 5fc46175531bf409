"""Requests for the admission queue, and fleets of one worker for them."""

from typing import Any

from legato_gateway.admission.limits import AdmissionLimits
from legato_gateway.admission.queue import Admission
from legato_gateway.admission.ticket import Hold, Ticket
from legato_gateway.routing.filters import Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView

ROLES: dict[str, Any] = {"p": "prefill", "d": "decode", "u": "unified"}


def worker(name: str, **overrides: Any) -> WorkerView:
    """Its name begins with the first letter of its role; 100 blocks of 10 tokens, 1,000 prompt tokens a second."""
    fields = {"num_blocks": 100, "free_blocks": 100, "prefill_rate": 1000.0, "max_length": 5000, **overrides}
    return WorkerView(name, ROLES[name[0]], "e", "r", 10, **fields)


def snapshot(**overrides: Any) -> FleetSnapshot:
    return FleetSnapshot((worker("u0", **overrides),))


BUSY = snapshot(free_blocks=0)
FREE = snapshot()
UNMEASURED = snapshot(free_blocks=0, prefill_rate=0.0)  # it refuses no deadline


def room(blocks: int) -> FleetSnapshot:
    return snapshot(free_blocks=blocks)


def ticket(id: str, tenant: str = "t", tokens: int = 100, **overrides: Any) -> Ticket:
    fields = {"uncached": tokens, "deadline": 1e9, **overrides}
    return Ticket(tenant, Need(id, tokens, 10), **fields)


def held(*tickets: Ticket, limits: AdmissionLimits | None = None) -> Admission:
    queue = Admission(limits)
    for one in tickets:
        assert isinstance(queue.offer(one, UNMEASURED, 0), Hold)
    return queue


def drained(queue: Admission, rounds: int = 10_000) -> list[str]:
    """The order in which held requests start when there is room for about one at a time."""
    order: list[str] = []
    for _ in range(rounds):
        started = queue.next(room(11), 0)
        if not started:
            break
        order += started
        for id in started:
            queue.finished(id, 0)
    return order


LONG = ticket("long", tokens=500)
