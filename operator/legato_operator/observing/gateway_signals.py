"""The autoscaler's signals from the reports of all gateways of a service."""

import logging
from dataclasses import dataclass

from legato_operator.autoscaler.decide import DECIDE_EVERY
from legato_operator.autoscaler.demand_window import DemandWindow
from legato_operator.autoscaler.signals import Signals
from legato_operator.manifests import common
from legato_operator.observing.observed import Observed
from legato_operator.observing.reported_signals import reported_signals

log = logging.getLogger(__name__)


@dataclass
class _Memory:
    """State of one service."""

    window: DemandWindow
    silent: tuple[str, ...] = ()  # gateways that did not answer the last poll


class GatewaySignalSource:
    """The signals of services by the gateways' reports in an observation."""

    def __init__(self) -> None:
        self._services: dict[str, _Memory] = {}

    async def signals(self, observed: Observed) -> Signals:
        """Returns the current signals of an observed service. Unknown signals are None; no error is raised for them."""
        memory = self._services.setdefault(observed.uid, _Memory(DemandWindow(observed.now)))
        gateways = [pod for pod in observed.pods if pod.pool == common.GATEWAY]
        by_gateway = {pod.name: pod.report for pod in gateways if pod.report is not None}
        memory.window.fill(observed.unchanged_until, DECIDE_EVERY)
        memory.window.add(by_gateway.values(), observed.now)
        needed = [pod.name for pod in gateways if pod.ready and not pod.leaving]
        silent = tuple(name for name in needed if name not in by_gateway)
        if silent != memory.silent:
            log.warning("%s: gateways that do not answer: %s", observed.service.metadata.name, list(silent) or "none")
            memory.silent = silent
        return reported_signals(memory.window, observed.pods, tuple(by_gateway.values()), complete=not silent)

    def forget(self, uid: str) -> None:
        """Forgets a service that has ended or is no longer scaled."""
        self._services.pop(uid, None)
