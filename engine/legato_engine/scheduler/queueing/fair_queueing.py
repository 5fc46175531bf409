"""Fair queueing of prompts of different tenants, in prompt tokens.

Each tenant has a virtual time: the tokens that it was served, counted from the virtual time of the least served active
tenant when it became active. A prompt's start tag is its tenant's virtual time, and its finish tag is that plus its
uncached tokens. Prompts are computed in the order of finish tags, even if another one has started. So a tenant that
uses less than its share never waits for one that uses more. (Start tags as in Goyal, Vin and Cheng, "Start-time Fair
Queueing", 1996; the order by finish tags is weighted fair queueing's.)
"""

from collections.abc import Mapping

from legato_engine.scheduler.requests.request import Request

MOST_TENANTS = 1024  # inactive tenants that are remembered


class FairQueueing:
    """The virtual times of tenants. `queue.Order` orders prompts of the same tenant."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._times)

    def __getitem__(self, tenant: str) -> float:
        return self._times.get(tenant, 0.0)

    def arrive(self, tenant: str, active: Mapping[str, float]) -> None:
        """A tenant without waiting prompts gets one. Time in which it had none is not credited.

        `active` are the virtual times of tenants with prompts here.
        """
        if not active:
            self._times.clear()
        least = min(active.values(), default=0.0)
        self._times[tenant] = max(self[tenant], least)
        if len(self._times) > MOST_TENANTS:
            self._forget(active.keys() | {tenant})

    def begin(self, request: Request, advantage: float) -> None:
        """Sets the tags of a request that starts and advances its tenant's virtual time."""
        request.start_tag = self[request.tenant]
        request.finish_tag = self.finish_tag(request, advantage)
        self._times[request.tenant] = request.start_tag + request.uncached

    def finish_tag(self, request: Request, advantage: float) -> float:
        """The finish tag if the request were its tenant's next, `advantage` tokens earlier for its priority."""
        return self[request.tenant] + request.uncached - advantage

    def _forget(self, active: set[str]) -> None:
        """Forgets the least served inactive tenants."""
        inactive = sorted(self._times.keys() - active, key=self._times.__getitem__)
        for tenant in inactive[: MOST_TENANTS // 2]:
            del self._times[tenant]
