"""Metrics of each service: its conditions, its pools, and its autoscaler's decisions.

They are computed from the last pass at each scrape, so no series outlives its service or reason. Only the leading
replica exposes them, because two replicas could disagree.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from legato_operator.api import conditions
from legato_operator.autoscaler.decision import PoolDecision
from legato_operator.cluster import Ref
from legato_operator.observing.observed import Observed

_SERVICE = ("namespace", "service")
_POOL = (*_SERVICE, "pool")
_PREFIX = "legato_operator_"


@dataclass
class _ServiceState:
    """The last known state of one service."""

    objectives: Mapping[str, float] = field(default_factory=dict)  # seconds
    asked: Mapping[str, int] = field(default_factory=dict)  # spec.replicas by pool
    status: dict[str, Any] = field(default_factory=dict)
    decisions: dict[str, PoolDecision] = field(default_factory=dict)
    changes: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # by pool, direction and reason


class ServiceMetrics(Collector):
    """A `StatusJournal` and a `ScalingJournal`."""

    def __init__(self, leads: Callable[[], bool] = lambda: True) -> None:
        self.leads = leads
        self._services: dict[Ref, _ServiceState] = {}

    def observe(self, service: Ref, observed: Observed) -> None:
        state, slo = self._state(service), observed.service.spec.slo
        state.objectives, state.asked = {"ttft": slo.ttft, "tpot": slo.tpot}, observed.desired_replicas

    def record_status(self, service: Ref, status: Mapping[str, Any]) -> None:
        self._state(service).status.update(status)

    def remove(self, service: Ref) -> None:
        self._services.pop(service, None)

    def record_decision(self, service: Ref, decision: PoolDecision) -> None:
        self._state(service).decisions[decision.pool] = decision

    def record_change(self, service: Ref, decision: PoolDecision) -> None:
        direction = "up" if decision.desired > decision.current else "down"
        self._state(service).changes[decision.pool, direction, decision.reason] += 1

    def forget_decisions(self, service: Ref) -> None:
        if service in self._services:
            self._services[service].decisions.clear()

    def collect(self) -> Iterator[Metric]:
        services = self._services if self.leads() else {}
        yield from _conditions(services)
        yield from _pools(services)
        yield from _decisions(services)
        objectives = _gauge("objective_seconds", "Objective of the manifest, ttft or tpot", (*_SERVICE, "objective"))
        for (ref, state), name in ((each, name) for each in services.items() for name in each[1].objectives):
            objectives.add_metric((ref.namespace, ref.name, name), state.objectives[name])
        yield objectives

    def _state(self, service: Ref) -> _ServiceState:
        return self._services.setdefault(service, _ServiceState())


_Services = Mapping[Ref, _ServiceState]


def _gauge(name: str, text: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, text, labels=labels)


def _conditions(services: _Services) -> Iterator[Metric]:
    family = _gauge("condition", "1 for each condition as it is now", (*_SERVICE, "type", "status", "reason"))
    for ref, state in services.items():
        for each in conditions.known(state.status):
            family.add_metric((ref.namespace, ref.name, each["type"], each["status"], each["reason"]), 1)
    yield family


def _pools(services: _Services) -> Iterator[Metric]:
    asked = _gauge("pool_spec_replicas", "Workers that a pool's scaler asks for", _POOL)
    counts = {
        "desired": _gauge("pool_desired_replicas", "Workers that a pool should have, within all limits", _POOL),
        "replicas": _gauge("pool_replicas", "Worker pods of a pool", _POOL),
        "ready": _gauge("pool_ready_replicas", "Worker pods that are ready", _POOL),
    }
    capped = _gauge("pool_capped", "1 if a limit keeps a pool from being as large as needed", (*_POOL, "by"))
    for ref, state in services.items():
        for pool, number in state.asked.items():
            asked.add_metric((ref.namespace, ref.name, pool), number)
        for pool, status in state.status.get("pools", {}).items():
            labels = (ref.namespace, ref.name, pool)
            for key, family in counts.items():
                family.add_metric(labels, status[key])
            if by := _capped_by(state, pool, status):
                capped.add_metric((*labels, by), 1)
    yield from (asked, *counts.values(), capped)


def _capped_by(state: _ServiceState, pool: str, status: Mapping[str, Any]) -> str:
    """Returns the field that keeps a pool from growing, by the plan's limits or the autoscaler's, or an empty text."""
    if "cappedBy" in status and state.asked.get(pool, 0) > status["desired"]:
        return str(status["cappedBy"])
    decision = state.decisions.get(pool)
    return decision.capped_by if decision is not None and decision.needed > decision.desired else ""


def _decisions(services: _Services) -> Iterator[Metric]:
    desired = _gauge("scaling_recommended", "Workers that the autoscaler sets, or would", _POOL)
    needed = _gauge("scaling_needed", "Workers that the signals ask for", _POOL)
    missing = _gauge("scaling_missing_signals", "Signals without which the pool does not shrink", _POOL)
    changes = CounterMetricFamily(
        _PREFIX + "scaling_changes", "Changes by the autoscaler", labels=(*_POOL, "direction", "reason")
    )
    for ref, state in services.items():
        for pool, decision in state.decisions.items():
            labels = (ref.namespace, ref.name, pool)
            desired.add_metric(labels, decision.desired)
            needed.add_metric(labels, decision.needed)
            missing.add_metric(labels, len(decision.missing))
        for what, count in state.changes.items():
            changes.add_metric((ref.namespace, ref.name, *what), count)
    yield from (desired, needed, missing, changes)
