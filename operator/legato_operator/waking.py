"""Wakes services at zero as soon as their gateways report a queued request, without waiting for the next poll."""

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
    """Client that waits for queued requests in gateways."""

    async def holds(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> bool:
        """Waits some seconds for a queued request; False without one, or without an answer."""
        ...


@dataclass
class _Gateway:
    """A gateway that is waited for, with its credentials."""

    tokens: Sequence[str]
    tls: PeerTLS | None
    task: "asyncio.Task[None] | None" = None


class DemandWaker:
    """Waits for the gateways of all services at zero while it runs. The next poll finds requests that it misses."""

    def __init__(self, gateways: HoldingGateways, clock: Clock) -> None:
        self._gateways = gateways
        self._clock = clock
        self._wake: Callable[[Ref], None] = lambda service: None
        self._tasks: asyncio.TaskGroup | None = None
        self._waiting: dict[Ref, dict[str, _Gateway]] = {}  # by service and address

    async def run(self, wake: Callable[[Ref], None]) -> None:
        """Calls `wake` with services whose gateways have queued requests, until cancelled."""
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
        """Starts or stops waiting for the gateways of a service that was just observed, if it is at zero."""
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
        """Stops waiting for the gateways of a service that was deleted."""
        for gateway in self._waiting.pop(service, {}).values():
            _end(gateway)

    async def _wait(self, service: Ref, address: str, gateway: _Gateway) -> None:
        """Asks a gateway at most once per poll interval: a wake may change nothing, and older gateways answer
        immediately."""
        while True:
            await asyncio.gather(self._ask(service, address, gateway), self._clock.sleep(DECIDE_EVERY))

    async def _ask(self, service: Ref, address: str, gateway: _Gateway) -> None:
        if await self._gateways.holds(address, gateway.tokens, gateway.tls):
            self._wake(service)


def _holders(observed: Observed) -> list[Pod]:
    """Returns the gateways that would queue the first request."""
    if not (observed.at_zero and acts(observed)):
        return []
    return [
        pod for pod in observed.pods if pod.pool == common.GATEWAY and pod.ready and pod.address and not pod.leaving
    ]


def _end(gateway: _Gateway) -> None:
    if gateway.task is not None:
        gateway.task.cancel()
