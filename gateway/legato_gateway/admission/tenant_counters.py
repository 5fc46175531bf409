"""Service to each tenant: the virtual token counters, and tenants in their order. Pure: part of `admission`."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

MAX_TENANTS = 8192  # remembered in addition to tenants with requests here

Busy = Callable[[], set[str]]  # tenants with requests here


class TenantCounters:
    """Tokens served by tenant, weighted and lifted (Sheng et al., "Fairness in Serving Large Language Models")."""

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._floor = 0.0  # the highest counter of a tenant when it was started

    def __getitem__(self, tenant: str) -> float:
        return self._counters[tenant]

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._counters

    def __len__(self) -> int:
        return len(self._counters)

    def lifted(self, tenant: str, least_waiting: float | None) -> float:
        """Returns its counter if it came now after being idle: idle time earns no credit."""
        least = self._floor if least_waiting is None else least_waiting
        return max(self._counters.get(tenant, 0.0), least)

    def lift(self, tenant: str, least_waiting: float | None) -> None:
        """Lifts a tenant that was idle. `least_waiting` is the least counter of the waiting tenants."""
        self._counters[tenant] = self.lifted(tenant, least_waiting)

    def charge(self, tenant: str, tokens: float) -> None:
        """Charges a tenant for `tokens`. Raises KeyError if it was never lifted."""
        self._counters[tenant] += tokens

    def started(self, tenant: str) -> None:
        """Records that a request of it was started and charged."""
        self._floor = max(self._floor, self._counters[tenant])

    def bound(self, busy: Busy) -> None:
        """Forgets the least served idle tenants: clients choose their names, so their number must be bounded."""
        if len(self._counters) <= MAX_TENANTS:
            return
        kept = busy()
        idle = sorted((tenant for tenant in self._counters if tenant not in kept), key=self._counters.__getitem__)
        for tenant in idle[: MAX_TENANTS // 2]:
            del self._counters[tenant]


class TenantOrder:
    """Tenants with queued requests, the least served first.

    Updates take O(log n), so that a client which names many tenants does not slow down offers.
    """

    def __init__(self) -> None:
        self._order: list[tuple[float, str]] = []
        self._counters: dict[str, float] = {}

    def put(self, tenant: str, counter: float) -> None:
        """Adds it, or moves it to the position of its counter."""
        self.discard(tenant)
        insort(self._order, (counter, tenant))
        self._counters[tenant] = counter

    def discard(self, tenant: str) -> None:
        """Removes it, if it is there."""
        if (counter := self._counters.pop(tenant, None)) is not None:
            del self._order[bisect_left(self._order, (counter, tenant))]

    @property
    def least(self) -> float | None:
        """The least counter, or None if it is empty."""
        return self._order[0][0] if self._order else None

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._counters

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[str]:
        """Iterates from the least served one."""
        return (tenant for _, tenant in self._order)
