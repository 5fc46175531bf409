"""The quotas of tenants as token buckets. Pure: part of `admission`."""

from collections.abc import Mapping
from dataclasses import dataclass

from legato_gateway.admission.limits import Quota
from legato_gateway.admission.tenant_counters import MAX_TENANTS, Busy


@dataclass(slots=True)
class _Bucket:
    level: float
    at: float


class TokenBuckets:
    """Token buckets of tenants that used some of their quota."""

    def __init__(self, quotas: Mapping[str, Quota]) -> None:
        self._quotas = quotas
        self._buckets: dict[str, _Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def limits(self, tenant: str) -> bool:
        """True if the tenant has a quota."""
        return self._quota(tenant) is not None

    def seconds_short(self, tenant: str, waiting: int, now: float) -> float | None:
        """Returns the seconds until it may come again if `waiting` tokens were taken now; None: it may come now."""
        quota = self._quota(tenant)
        if quota is None:
            return None
        level = self._bucket(tenant, quota, now).level - waiting
        if level > 0:
            return None
        return (1 - level) / quota.rate if quota.rate > 0 else 3600.0

    def open(self, tenant: str, now: float, busy: Busy) -> None:
        """Starts charging a tenant."""
        quota = self._quota(tenant)
        if quota is not None:
            self._buckets[tenant] = self._bucket(tenant, quota, now)
            self._bound(now, busy)

    def charge(self, tenant: str, tokens: float) -> None:
        """Charges a tenant for `tokens`."""
        if tenant in self._buckets:
            self._buckets[tenant].level -= tokens

    def _bound(self, now: float, busy: Busy) -> None:
        """Drops full buckets, and then those with the least missing, if there are too many."""
        if len(self._buckets) <= MAX_TENANTS:
            return
        kept = busy() | self._quotas.keys()  # tenants with quotas of their own are not random names
        lacking = {}
        for tenant in self._buckets.keys() - kept:
            if (quota := self._quota(tenant)) is not None:
                lacking[tenant] = 1 - self._bucket(tenant, quota, now).level / quota.burst
        for count, tenant in enumerate(sorted(lacking, key=lacking.__getitem__)):
            if lacking[tenant] > 0 and count >= MAX_TENANTS // 2:
                break
            del self._buckets[tenant]

    def _quota(self, tenant: str) -> Quota | None:
        return self._quotas.get(tenant) or self._quotas.get("*")

    def _bucket(self, tenant: str, quota: Quota, now: float) -> _Bucket:
        """Returns the tenant's bucket at `now`; a full one if none is stored."""
        bucket = self._buckets.get(tenant) or _Bucket(quota.burst, now)
        bucket.level = min(quota.burst, bucket.level + quota.rate * max(0.0, now - bucket.at))
        bucket.at = max(bucket.at, now)
        return bucket
