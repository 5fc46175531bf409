"""Wakes services at zero: their gateways say at once that they hold a request, so that no look has to come round."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from legato_operator.autoscaler.decide import DECIDE_EVERY
from legato_operator.autoscaling import acts
from legato_operator.clock import Clock
from legato_operator.cluster import Ref
from legato_operator.manifests import common
from legato_operator.observing.observed import Observed, PeerTLS, Pod, known_tokens


class HoldingGateways(Protocol):
    """How gateways are waited for."""

    async def holds(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> bool:
        """Whether it holds a request, now or soon; False after some seconds without one, or where it does not
        answer."""
        ...


@dataclass
class _Gateway:
    """One that is waited for, and how it is asked."""

    tokens: Sequence[str]
    tls: PeerTLS | None
    task: "asyncio.Task[None] | None" = None


class DemandWaker:
    """Waits for the gateways of all services at zero while it runs. What it misses, the next look finds."""

    def __init__(self, gateways: HoldingGateways, clock: Clock) -> None:
        self._gateways = gateways
        self._clock = clock
        self._wake: Callable[[Ref], None] = lambda service: None
        self._tasks: asyncio.TaskGroup | None = None
        self._waiting: dict[Ref, dict[str, _Gateway]] = {}  # by service and address

    async def run(self, wake: Callable[[Ref], None]) -> None:
        """Calls `wake` with services whose gateways hold requests, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks, self._wake = tasks, wake
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self._tasks = None
        finally:
            self._waiting.clear()

    def follow(self, service: Ref, observed: Observed) -> None:
        """A pass has looked at it: its gateways are waited for while it is at zero, and no longer."""
        if self._tasks is None:
            return
        waiting = self._waiting.setdefault(service, {})
        tokens = known_tokens(observed.token, observed.remembered_token)
        wanted = {pod.address: pod.tls for pod in _holders(observed)}
        for address in waiting.keys() - wanted.keys():
            _end(waiting.pop(address))
        for address, tls in wanted.items():
            known = waiting.setdefault(address, _Gateway(tokens, tls))
            known.tokens, known.tls = tokens, tls
            if known.task is None:
                known.task = self._tasks.create_task(self._wait(service, address, known))
        if not waiting:
            del self._waiting[service]

    def forget(self, service: Ref) -> None:
        """It is not there any more."""
        for gateway in self._waiting.pop(service, {}).values():
            _end(gateway)

    async def _wait(self, service: Ref, address: str, gateway: _Gateway) -> None:
        """No more often than looks are: a wake may change nothing, as when another gateway does not answer, and an
        older one answers at once."""
        while True:
            await asyncio.gather(self._ask(service, address, gateway), self._clock.sleep(DECIDE_EVERY))

    async def _ask(self, service: Ref, address: str, gateway: _Gateway) -> None:
        if await self._gateways.holds(address, gateway.tokens, gateway.tls):
            self._wake(service)


def _holders(observed: Observed) -> list[Pod]:
    """Gateways that would hold the first request."""
    if not (observed.at_zero and acts(observed)):
        return []
    return [
        pod for pod in observed.pods if pod.pool == common.GATEWAY and pod.ready and pod.address and not pod.leaving
    ]


def _end(gateway: _Gateway) -> None:
    if gateway.task is not None:
        gateway.task.cancel()
