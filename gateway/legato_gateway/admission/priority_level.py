"""Held tickets of one priority. Pure: part of `admission`."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from legato_gateway.admission.tenant_counters import TenantCounters
from legato_gateway.admission.tenant_order import TenantOrder
from legato_gateway.admission.ticket import Ticket


class Place(NamedTuple):
    """Where a held ticket stands among its tenant's: by `due`, a time, then in order of arrival."""

    due: float
    number: int
    ticket: Ticket


class PriorityLevel:
    """By tenant, the least served one first; each tenant's tickets by their places. `turn` is when it was last served,
    or came to be, in numbers of places."""

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.tenants: dict[str, list[Place]] = {}
        self.order = TenantOrder()  # of the same tenants
        self.tokens: Counter[str] = Counter()  # uncached, of each of them
        self.total = 0  # of these

    @property
    def first(self) -> Ticket:
        """Of the least served tenant."""
        return self.tenants[next(iter(self.order))][0].ticket

    def tickets(self, most: int, startable: Callable[[Ticket], bool]) -> Iterator[Ticket]:
        """Those `startable`, in the order in which they are to start; of each tenant the first `most`."""
        for tenant in self.order:
            yield from islice(filter(startable, (place.ticket for place in self.tenants[tenant])), most)

    def add(self, place: Place, counter: float) -> None:
        tenant, tokens = place.ticket.tenant, place.ticket.uncached
        insort(self.tenants.setdefault(tenant, []), place)
        self.order.put(tenant, counter)
        self.tokens[tenant] += tokens
        self.total += tokens

    def remove(self, place: Place) -> None:
        tenant, tokens = place.ticket.tenant, place.ticket.uncached
        places = self.tenants[tenant]
        del places[bisect_left(places, place)]
        self.tokens[tenant] -= tokens
        self.total -= tokens
        if not places:
            del self.tenants[tenant], self.tokens[tenant]
            self.order.discard(tenant)

    def tokens_before(self, place: Place, counter: float, counters: TenantCounters) -> int:
        """Tokens here that will start before `place`, whose tenant has this `counter`, as fair sharing goes."""
        tenant = place.ticket.tenant
        places = self.tenants.get(tenant, [])
        before: float = sum(each.ticket.uncached for each in places[: bisect_left(places, place)])
        counter += before
        for other in self.order:
            if counters[other] >= counter:
                break  # and all after it
            if other != tenant:
                before += min(self.tokens[other], counter - counters[other])
        return int(before)

    def check_integrity(self, counters: TenantCounters) -> None:
        """Raises AssertionError unless the books agree."""
        assert self.tenants, "an empty level is kept"
        assert list(self.order) == sorted(self.tenants, key=lambda t: (counters[t], t)), "tenants are out of order"
        for tenant, places in self.tenants.items():
            assert places, "an empty queue is kept"
            assert places == sorted(places), "tickets are out of order"
            assert self.tokens[tenant] == sum(p.ticket.uncached for p in places), "a tenant's tokens are miscounted"
        assert self.total == sum(self.tokens.values()), "tokens are miscounted"
