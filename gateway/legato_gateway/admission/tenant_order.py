"""Tenants in the order of their counters. Pure: part of `admission`."""

from bisect import bisect_left, insort
from collections.abc import Iterator


class TenantOrder:
    """Tenants with requests in a queue, the least served first: looked up in O(log n), so that a client that names
    many tenants makes no offer slow."""

    def __init__(self) -> None:
        self._order: list[tuple[float, str]] = []
        self._counters: dict[str, float] = {}

    def put(self, tenant: str, counter: float) -> None:
        """Adds it, or moves it to where its counter belongs."""
        self.discard(tenant)
        insort(self._order, (counter, tenant))
        self._counters[tenant] = counter

    def discard(self, tenant: str) -> None:
        """Removes it. One that is not there is no error."""
        if (counter := self._counters.pop(tenant, None)) is not None:
            del self._order[bisect_left(self._order, (counter, tenant))]

    @property
    def least(self) -> float | None:
        """The least counter; None where there is no tenant."""
        return self._order[0][0] if self._order else None

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._counters

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[str]:
        """From the least served one."""
        return (tenant for _, tenant in self._order)
