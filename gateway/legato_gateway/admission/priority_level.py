"""Queued tickets of one priority, and shares between priorities. Pure: part of `admission`."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from legato_gateway.admission.tenant_counters import TenantCounters, TenantOrder
from legato_gateway.admission.ticket import Ticket

RATIO = 4
RANKS = 4


class PriorityShares:
    """Shares of service between priority levels: the tokens owed to each rank and the ones below it.

    Ranks number the levels in use; the highest is 0. For every `RATIO` tokens that start at one level, one is owed to
    all levels below it together, which share it in the same way. Only `RANKS` levels in use are distinguished: the last
    rank is all lower levels. So the highest level gets four fifths while others wait, the next one four fifths of the
    rest, and the lowest together at least 1 token in 125. A debt is paid with the next ticket, whatever its size, and
    an excess payment is earned back first, as in the deficit round robin of Shreedhar and Varghese (SIGCOMM 1995).
    """

    def __init__(self) -> None:
        self._owed = [0.0] * RANKS

    @staticmethod
    def ranks(levels: int) -> int:
        """Returns the number of ranks with `levels` in use."""
        return min(levels, RANKS)

    def due_rank(self, levels: int) -> int:
        """Returns the rank to serve next."""
        rank = 0
        while rank + 1 < self.ranks(levels) and self._owed[rank + 1] > 0:
            rank += 1
        return rank

    def started(self, rank: int, levels: int, tokens: int) -> None:
        """Records that `tokens` of this rank have started, due or not."""
        for paid in range(1, rank + 1):
            self._owed[paid] -= tokens
        if rank + 1 < self.ranks(levels):
            self._owed[rank + 1] += tokens / RATIO

    def owed(self, rank: int) -> float:
        """Returns the tokens that this rank and those below may start before those above; negative: they are ahead."""
        return self._owed[rank]


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
        self.cost: Counter[str] = Counter()  # by tenant
        self.total = 0  # cost of all tenants

    @property
    def first(self) -> Ticket:
        """The least served tenant's first ticket."""
        return self.tenants[next(iter(self.order))][0].ticket

    def tickets(self, most: int, startable: Callable[[Ticket], bool]) -> Iterator[Ticket]:
        """Yields `startable` tickets in starting order; at most `most` per tenant."""
        for tenant in self.order:
            yield from islice(filter(startable, (place.ticket for place in self.tenants[tenant])), most)

    def add(self, place: Place, counter: float) -> None:
        tenant, ticket = place.ticket.tenant, place.ticket
        insort(self.tenants.setdefault(tenant, []), place)
        self.order.put(tenant, counter)
        self.tokens[tenant] += ticket.uncached
        self.cost[tenant] += ticket.cost
        self.total += ticket.cost

    def remove(self, place: Place) -> None:
        tenant, ticket = place.ticket.tenant, place.ticket
        places = self.tenants[tenant]
        del places[bisect_left(places, place)]
        self.tokens[tenant] -= ticket.uncached
        self.cost[tenant] -= ticket.cost
        self.total -= ticket.cost
        if not places:
            del self.tenants[tenant], self.tokens[tenant], self.cost[tenant]
            self.order.discard(tenant)

    def cost_before(self, place: Place, counter: float, counters: TenantCounters) -> int:
        """Returns the cost here that starts before `place`, whose tenant has this `counter`, with fair sharing."""
        tenant = place.ticket.tenant
        places = self.tenants.get(tenant, [])
        before: float = sum(each.ticket.cost for each in places[: bisect_left(places, place)])
        counter += before
        for other in self.order:
            if counters[other] >= counter:
                break  # and all after it
            if other != tenant:
                before += min(self.cost[other], counter - counters[other])
        return int(before)

    def check_integrity(self, counters: TenantCounters) -> None:
        """Raises AssertionError unless the level is consistent."""
        assert self.tenants, "an empty level is kept"
        assert list(self.order) == sorted(self.tenants, key=lambda t: (counters[t], t)), "tenants are out of order"
        for tenant, places in self.tenants.items():
            assert places, "an empty queue is kept"
            assert places == sorted(places), "tickets are out of order"
            assert self.tokens[tenant] == sum(p.ticket.uncached for p in places), "a tenant's tokens are miscounted"
            assert self.cost[tenant] == sum(p.ticket.cost for p in places), "a tenant's cost is miscounted"
        assert self.total == sum(self.cost.values()), "the cost is miscounted"
