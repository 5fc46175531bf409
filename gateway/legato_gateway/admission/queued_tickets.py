"""The queued requests, by priority and tenant. Pure: part of `admission`."""

from collections.abc import Callable, Iterator
from itertools import count

from legato_gateway.admission.priority_level import RANKS, RATIO, Place, PriorityLevel, PriorityShares
from legato_gateway.admission.tenant_counters import TenantCounters, TenantOrder
from legato_gateway.admission.ticket import Ticket


class QueuedTickets:
    """All queued tickets, in the order in which they should start.

    Deadlines more than `urgent_within` seconds away on arrival count as equal among a tenant's requests.
    """

    def __init__(self, urgent_within: float) -> None:
        self._urgent_within = urgent_within
        self._numbers = count()
        self._levels: dict[int, PriorityLevel] = {}
        self._shares = PriorityShares()
        self._waiting = TenantOrder()  # tenants with queued tickets, of any priority
        self._places: dict[str, Place] = {}
        self.tokens = 0  # uncached, of all tickets
        self.cost = 0  # of all tickets

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, id: str) -> bool:
        return id in self._places

    def __iter__(self) -> Iterator[Ticket]:
        return (place.ticket for place in self._places.values())

    def get(self, id: str) -> Ticket | None:
        """Returns the queued ticket of this id, or None."""
        place = self._places.get(id)
        return None if place is None else place.ticket

    @property
    def tenants(self) -> TenantOrder:
        """Tenants with queued tickets."""
        return self._waiting

    def add(self, ticket: Ticket, counter: float, now: float) -> None:
        """Adds a ticket. `counter` is its tenant's."""
        place = self._places[ticket.id] = self._place(ticket, now)
        level = self._levels.get(ticket.priority)
        if level is None:
            level = self._levels[ticket.priority] = PriorityLevel(place.number)
        level.add(place, counter)
        self._waiting.put(ticket.tenant, counter)
        self.tokens += ticket.uncached
        self.cost += ticket.cost

    def remove(self, ticket: Ticket) -> None:
        """Removes a ticket. Raises KeyError if it is not queued."""
        level = self._levels[ticket.priority]
        level.remove(self._places.pop(ticket.id))
        if not level.tenants:
            del self._levels[ticket.priority]
        if not any(ticket.tenant in other.tenants for other in self._levels.values()):
            self._waiting.discard(ticket.tenant)
        self.tokens -= ticket.uncached
        self.cost -= ticket.cost

    def started(self, ticket: Ticket) -> None:
        """Charges the ticket's level and removes it, as it starts."""
        self._shares.started(self._rank(ticket.priority), len(self._levels), ticket.cost)
        self._levels[ticket.priority].last_served = next(self._numbers)
        self.remove(ticket)

    def reorder(self, tenant: str, counter: float) -> None:
        """Updates the order after the tenant's counter has changed."""
        if tenant in self._waiting:
            levels = (level.order for level in self._levels.values() if tenant in level.tenants)
            for order in (self._waiting, *levels):
                order.put(tenant, counter)

    def tickets(self, most: int, startable: Callable[[Ticket], bool]) -> Iterator[Ticket]:
        """Yields `startable` tickets in starting order; at most `most` per tenant and level."""
        priorities = sorted(self._levels, reverse=True)
        rank = self._shares.due_rank(len(priorities))
        if rank == RANKS - 1:
            first = min(priorities[rank:], key=lambda priority: self._levels[priority].last_served)
        else:
            first = priorities[rank] if priorities else 0
        for priority in sorted(priorities, key=lambda priority: priority != first):
            yield from self._levels[priority].tickets(most, startable)

    def ahead(self, ticket: Ticket) -> float:
        """Returns the tokens that its level and those below had in excess of their share; at most 0: none."""
        rank = self._rank(ticket.priority)
        return -self._shares.owed(rank) if rank else 0.0

    def first_ticket(self, tenant: str) -> Ticket:
        """Returns the first ticket to start of a tenant with queued tickets."""
        priority = max(priority for priority, level in self._levels.items() if tenant in level.tenants)
        return self._levels[priority].tenants[tenant][0].ticket

    def tenant_tokens(self, tenant: str) -> int:
        """Returns the uncached tokens of one tenant."""
        return sum(level.tokens.get(tenant, 0) for level in self._levels.values())

    def cost_before(self, ticket: Ticket, counters: TenantCounters, now: float) -> int:
        """Estimates the cost that starts before `ticket`, from shares and counters."""
        priorities = sorted({*self._levels, ticket.priority}, reverse=True)
        rank = min(priorities.index(ticket.priority), RANKS - 1)
        before = 0
        if (level := self._levels.get(ticket.priority)) is not None:
            counter = counters.lifted(ticket.tenant, self._waiting.least)
            before = level.cost_before(self._place(ticket, now), counter, counters)
        others = [self._levels[p].total for p in priorities[rank:] if p != ticket.priority]
        before += sum(min(total, before) for total in others) if rank == RANKS - 1 else 0
        for above in reversed(range(rank)):
            level = self._levels[priorities[above]]
            first = level.first.cost
            due = RATIO * (before - self._shares.owed(above + 1))
            before += min(level.total, max(first, int(due)))
        return before

    def check_integrity(self, counters: TenantCounters) -> None:
        """Raises AssertionError unless the indexes agree."""
        queued = [p for level in self._levels.values() for places in level.tenants.values() for p in places]
        assert {place.ticket.id: place for place in queued} == self._places, "tickets and queues differ"
        assert len(queued) == len(self), "a ticket is queued twice"
        assert sum(place.ticket.uncached for place in queued) == self.tokens, "queued tokens are miscounted"
        assert sum(place.ticket.cost for place in queued) == self.cost, "the queued cost is miscounted"
        assert set(self._waiting) == {place.ticket.tenant for place in queued}, "waiting tenants are miscounted"
        assert self._waiting.least == min((counters[t] for t in self._waiting), default=None), "not the least"
        for level in self._levels.values():
            level.check_integrity(counters)

    def _place(self, ticket: Ticket, now: float) -> Place:
        return Place(min(ticket.deadline, now + self._urgent_within), next(self._numbers), ticket)

    def _rank(self, priority: int) -> int:
        return min(sum(other > priority for other in self._levels), RANKS - 1)
