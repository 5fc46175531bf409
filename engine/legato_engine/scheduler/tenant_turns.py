"""Whose prompt is computed next where several tenants have some: fair queueing, in tokens of prompts.

Each tenant has a virtual time: the tokens that it had, from where the least served of those with prompts here was when
it came. A prompt begins at its tenant's virtual time and ends so many tokens later; of two, the one that ends first is
computed first, even if the other has begun. So a tenant that asks for less than its share waits for nobody who asks for
more (start times as in Goyal, Vin and Cheng, "Start-time Fair Queueing", 1996; the order by ends is that of weighted
fair queueing).
"""

from collections.abc import Mapping

from legato_engine.scheduler.request import Request

MOST_TENANTS = 1024  # that are remembered, beside those with prompts here


class TenantTurns:
    """The virtual times of tenants. Within a tenant, other rules decide."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._times)

    def __getitem__(self, tenant: str) -> float:
        return self._times.get(tenant, 0.0)

    def come(self, tenant: str, present: Mapping[str, float]) -> None:
        """It has a prompt here, and had none that waited. `present` are the virtual times of tenants with prompts
        here: time that it was away is no credit."""
        if not present:
            self._times.clear()
        least = min(present.values(), default=0.0)
        self._times[tenant] = max(self[tenant], least)
        if len(self._times) > MOST_TENANTS:
            self._forget(present.keys() | {tenant})

    def begin(self, request: Request, advantage: float) -> None:
        """It begins, `advantage` tokens before its turn."""
        request.virtual_start = self[request.tenant]
        request.turn = self.turn(request, advantage)
        self._times[request.tenant] = request.virtual_start + request.uncached

    def turn(self, request: Request, advantage: float) -> float:
        """When its turn would be if it were its tenant's next."""
        return self[request.tenant] + request.uncached - advantage

    def _forget(self, present: set[str]) -> None:
        """Those that had least."""
        away = sorted(self._times.keys() - present, key=self._times.__getitem__)
        for tenant in away[: MOST_TENANTS // 2]:
            del self._times[tenant]
