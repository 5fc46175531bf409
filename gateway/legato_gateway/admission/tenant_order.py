"""Tenants in the order of their counters. Pure: part of `admission`."""

from bisect import bisect_left, insort
from collections.abc import Iterator


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
