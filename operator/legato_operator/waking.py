"""Polls idle services as soon as a gateway's demand changes, so that they need few polls until then."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from legato_operator.autoscaler.decide import DECIDE_EVERY
from legato_operator.autoscaling import acts
from legato_operator.clock import Clock
from legato_operator.cluster import Ref
from legato_operator.manifests import common
from legato_operator.observing.observed import Observed, PeerTLS, Pod


class WaitingGateways(Protocol):
    """Client that waits for changes in gateways."""

    async def changes(self, address: str, tokens: Sequence[str], seen: str, tls: PeerTLS | None = None) -> bool:
        """Waits some seconds for a report whose digest is not `seen`; False without one. True without an answer."""
        ...


@dataclass
class _Gateway:
    """A gateway that is waited for, with its credentials and the digest of its last report."""

    tokens: Sequence[str]
    tls: PeerTLS | None
    seen: str
    task: "asyncio.Task[None] | None" = None


class DemandWaker:
    """Waits for the gateways of all idle services while it runs. The next poll finds changes that it misses."""

    def __init__(self, gateways: WaitingGateways, clock: Clock) -> None:
        self._gateways = gateways
        self._clock = clock
        self._poll: Callable[[Ref], None] = lambda service: None
        self._tasks: asyncio.TaskGroup | None = None
        self._waiting: dict[Ref, dict[str, _Gateway]] = {}  # by service and address

    async def run(self, poll: Callable[[Ref], None]) -> None:
        """Calls `poll` with services whose gateways' demand has changed, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks, self._poll = tasks, poll
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self._tasks = None
        finally:
            self._waiting.clear()

    def follow(self, service: Ref, observed: Observed, idle: bool) -> bool:
        """Starts or stops waiting for the gateways of a service that was just observed, if it is idle or at zero.

        Returns True if no change of an idle service's demand needs a poll to be noticed.
        """
        if self._tasks is None:
            return False
        gateways = [pod for pod in observed.pods if pod.pool == common.GATEWAY]
        idle = idle and bool(gateways) and all(map(_is_at_rest, gateways))
        if idle or (observed.at_zero and acts(observed)):
            self._wait_for(self._tasks, service, observed.tokens, [pod for pod in gateways if _may_answer(pod)])
        else:
            self.forget(service)
        return idle

    def _wait_for(self, tasks: asyncio.TaskGroup, service: Ref, tokens: Sequence[str], gateways: Sequence[Pod]) -> None:
        waiting = self._waiting.setdefault(service, {})
        for address in waiting.keys() - {pod.address for pod in gateways}:
            _end(waiting.pop(address))
        for pod in gateways:
            seen = pod.report.digest if pod.report is not None else ""
            known = waiting.setdefault(pod.address, _Gateway(tokens, pod.tls, seen))
            known.tokens, known.tls, known.seen = tokens, pod.tls, seen
            if known.task is None:
                known.task = tasks.create_task(self._wait(service, pod.address, known))

    def forget(self, service: Ref) -> None:
        """Stops waiting for the gateways of a service."""
        for gateway in self._waiting.pop(service, {}).values():
            _end(gateway)

    async def _wait(self, service: Ref, address: str, gateway: _Gateway) -> None:
        """Asks a gateway at most once per poll interval: a poll may change nothing, and older gateways answer
        immediately."""
        while True:
            await asyncio.gather(self._ask(service, address, gateway), self._clock.sleep(DECIDE_EVERY))

    async def _ask(self, service: Ref, address: str, gateway: _Gateway) -> None:
        if await self._gateways.changes(address, gateway.tokens, gateway.seen, gateway.tls):
            self._poll(service)


def _may_answer(pod: Pod) -> bool:
    return pod.ready and pod.address != "" and not pod.leaving


def _is_at_rest(pod: Pod) -> bool:
    """True if the gateway reports each change: it can wait for one, and no lost connection becomes overdue."""
    report = pod.report
    if not _may_answer(pod) or report is None or not report.digest:
        return False
    return all(link.connected for link in report.links or ())


def _end(gateway: _Gateway) -> None:
    if gateway.task is not None:
        gateway.task.cancel()
