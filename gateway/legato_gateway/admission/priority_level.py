"""Queued tickets of one priority. Pure: part of `admission`."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from legato_gateway.admission.tenant_counters import TenantCounters
from legato_gateway.admission.tenant_order import TenantOrder
from legato_gateway.admission.ticket import Ticket


class Place(NamedTuple):
    """The position of a queued ticket among its tenant's: by `due`, a time, then in order of arrival."""

    due: float
    number: int
    ticket: Ticket


class PriorityLevel:
    """Tickets by tenant, the least served tenant first; each tenant's tickets by their places.

    `last_served` is the number of the last place that was served, or of the first place.
    """

    def __init__(self, last_served: int) -> None:
        self.last_served = last_served
        self.tenants: dict[str, list[Place]] = {}
        self.order = TenantOrder()  # of these tenants
        self.tokens: Counter[str] = Counter()  # uncached, by tenant
        self.total = 0  # of all tenants

    @property
    def first(self) -> Ticket:
        """The least served tenant's first ticket."""
        return self.tenants[next(iter(self.order))][0].ticket

    def tickets(self, most: int, startable: Callable[[Ticket], bool]) -> Iterator[Ticket]:
        """Yields `startable` tickets in starting order; at most `most` per tenant."""
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
        """Returns the tokens here that start before `place`, whose tenant has this `counter`, with fair sharing."""
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
        """Raises AssertionError unless the level is consistent."""
        assert self.tenants, "an empty level is kept"
        assert list(self.order) == sorted(self.tenants, key=lambda t: (counters[t], t)), "tenants are out of order"
        for tenant, places in self.tenants.items():
            assert places, "an empty queue is kept"
            assert places == sorted(places), "tickets are out of order"
            assert self.tokens[tenant] == sum(p.ticket.uncached for p in places), "a tenant's tokens are miscounted"
        assert self.total == sum(self.tokens.values()), "tokens are miscounted"
