"""The autoscaler's signals, from all gateways of a service: asked together, added up, each worker counted once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from legato_operator.api import roles
from legato_operator.api.resources import InferenceService
from legato_operator.autoscaler.demand_window import RECENT, WINDOW, DemandWindow, merged
from legato_operator.autoscaler.signals import Blocks, DecodeCost, Pool, PrefillCost, Signals, Traffic, WorkerSignals
from legato_operator.errors import ClusterError
from legato_operator.manifests import common
from legato_operator.observing.observed import Observed, Pod
from legato_protocol.demand import DemandReport, ReportedLoad
from legato_protocol.stream import Load

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
        traffic = _traffic(memory.window, reports) if told and not silent else None
        return Signals(_workers(observed.pods, reports), traffic)

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


def _traffic(window: DemandWindow, reports: Sequence[DemandReport]) -> Traffic | None:
    """None until gateways were asked twice."""
    minute, recent = window.last(WINDOW), window.last(RECENT)
    if minute is None or recent is None:
        return None
    return Traffic(
        seconds=minute[0],
        arrivals=minute[1].arrivals(),
        recent_seconds=recent[0],
        recent=recent[1].arrivals(),
        waiting=merged(bucket for report in reports for bucket in report.waiting),
        held=sum(report.held_requests for report in reports),
        held_tokens=sum(report.held_tokens for report in reports),
        held_prompt_tokens=sum(report.held_prompt_tokens for report in reports),
        output=minute[1].output(),
        head_wait=minute[1].head_wait,
    )


def _workers(pods: Iterable[Pod], reports: Iterable[DemandReport]) -> tuple[WorkerSignals, ...]:
    newest: dict[str, ReportedLoad] = {}
    for report in reports:
        for told in report.workers:
            if told.worker not in newest or told.age < newest[told.worker].age:
                newest[told.worker] = told
    return tuple(_worker(pod, newest.get(pod.name)) for pod in pods if pod.pool in roles.BOTH)


def _worker(pod: Pod, told: ReportedLoad | None) -> WorkerSignals:
    pool: Pool = "prefill" if pod.pool == roles.PREFILL else "decode"
    draining = pod.on_its_way_out or pod.failed or pod.lost
    if told is None:
        return WorkerSignals(pod.name, pool, pod.ready, draining, pod.age, pod.start_seconds)
    load = told.load
    return WorkerSignals(
        pod.name,
        pool,
        pod.ready,
        draining or load.draining,
        pod.age,
        pod.start_seconds,
        sample_age=told.age,
        queue_tokens=load.queue_tokens,
        parked_tokens=load.parked_tokens,
        prefill_cost=_prefill_cost(load),
        decode_cost=_decode_cost(load),
        blocks=_blocks(load),
        running=load.decoding,
        waiting=load.waiting + max(0, load.running - load.decoding),
        slots=load.slots or None,
        context_tokens=load.context_tokens,
    )


def _prefill_cost(load: Load) -> PrefillCost | None:
    """What a step costs by itself is shared by the tokens of a full one: a pool that needs another worker has such."""
    cost = load.prefill_cost
    return None if cost is None else PrefillCost(cost.per_token + cost.per_step / cost.chunk_tokens, cost.per_pair)


def _decode_cost(load: Load) -> DecodeCost | None:
    cost = load.decode_cost
    return None if cost is None else DecodeCost(cost.per_step, cost.per_row, cost.per_context)


def _blocks(load: Load) -> Blocks:
    return Blocks(
        load.free_blocks,
        load.cached_blocks,
        load.used_blocks,
        load.quarantined_blocks,
        load.granted_blocks,
        load.pending_blocks,
        load.growth_blocks,
    )
