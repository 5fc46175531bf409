"""The autoscaler's signals, from what all gateways of a service told."""

import logging
from dataclasses import dataclass

from legato_operator.autoscaler.demand_window import DemandWindow
from legato_operator.autoscaler.signals import Signals
from legato_operator.manifests import common
from legato_operator.observing import reported_signals
from legato_operator.observing.observed import Observed

log = logging.getLogger(__name__)


@dataclass
class _Memory:
    """Of one service."""

    window: DemandWindow
    silent: tuple[str, ...] = ()  # gateways that did not answer, the last time


class GatewaySignalSource:
    """A `SignalSource` of what gateways told when they were observed."""

    def __init__(self) -> None:
        self._services: dict[str, _Memory] = {}

    async def signals(self, observed: Observed) -> Signals:
        memory = self._services.setdefault(observed.uid, _Memory(DemandWindow(observed.now)))
        gateways = [pod for pod in observed.pods if pod.pool == common.GATEWAY]
        told = {pod.name: pod.report for pod in gateways if pod.report is not None}
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
