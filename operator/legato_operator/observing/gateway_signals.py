"""The autoscaler's signals, from all gateways of a service, which are asked together."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from legato_operator.api.resources import InferenceService
from legato_operator.autoscaler.demand_window import DemandWindow
from legato_operator.autoscaler.signals import Signals
from legato_operator.errors import ClusterError
from legato_operator.manifests import common
from legato_operator.observing import reported_signals
from legato_operator.observing.observed import Observed, Pod
from legato_protocol.demand import DemandReport

log = logging.getLogger(__name__)


class Gateways(Protocol):
    """How gateways are spoken to."""

    async def report(self, address: str, token: str) -> DemandReport | None:
        """What a gateway tells of demand; None when it does not answer."""
        ...


@dataclass
class _Memory:
    """Of one service."""

    window: DemandWindow
    silent: tuple[str, ...] = ()  # gateways that did not answer, the last time


class GatewaySignalSource:
    """A `SignalSource` that asks gateways. `token` reads a service's token; it may raise ClusterError."""

    def __init__(self, gateways: Gateways, token: Callable[[InferenceService], Awaitable[str]]) -> None:
        self._gateways = gateways
        self._token = token
        self._services: dict[str, _Memory] = {}

    async def signals(self, observed: Observed) -> Signals:
        memory = self._services.setdefault(observed.uid, _Memory(DemandWindow(observed.now)))
        gateways = [pod for pod in observed.pods if pod.pool == common.GATEWAY]
        told = await self._ask(observed.service, gateways)
        memory.window.add(told.values(), observed.now)
        needed = [pod.name for pod in gateways if pod.ready and not pod.leaving]
        silent = tuple(name for name in needed if name not in told)
        if silent != memory.silent:
            log.warning("%s: gateways that do not answer: %s", observed.service.metadata.name, list(silent) or "none")
            memory.silent = silent
        reports = tuple(told.values())
        traffic = reported_signals.traffic(memory.window, reports) if told and not silent else None
        return Signals(reported_signals.workers(observed.pods, reports), traffic)

    def forget(self, uid: str) -> None:
        self._services.pop(uid, None)

    async def _ask(self, service: InferenceService, gateways: Iterable[Pod]) -> dict[str, DemandReport]:
        """By pod."""
        asked = [pod for pod in gateways if pod.address and not (pod.failed or pod.lost)]
        try:
            token = await self._token(service)
        except ClusterError:
            return {}
        reports = await asyncio.gather(*(self._gateways.report(pod.address, token) for pod in asked))
        return {pod.name: report for pod, report in zip(asked, reports, strict=True) if report is not None}
