"""What the operator knows of each service, as metrics: its conditions, its pools, and what its autoscaler decided.

They are made anew from the last pass whenever they are read, so nothing of a service or a reason outlives it. Only the
replica that leads tells them, or two would tell different things of one service.
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
class _Told:
    """Of one service."""

    objectives: Mapping[str, float] = field(default_factory=dict)  # seconds
    asked: Mapping[str, int] = field(default_factory=dict)  # spec.replicas by pool
    status: dict[str, Any] = field(default_factory=dict)
    decisions: dict[str, PoolDecision] = field(default_factory=dict)
    changes: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # by pool, direction and reason


class ServiceMetrics(Collector):
    """A `StatusJournal` and a `ScalingJournal`."""

    def __init__(self, leads: Callable[[], bool] = lambda: True) -> None:
        self.leads = leads
        self._services: dict[Ref, _Told] = {}

    def observed(self, service: Ref, observed: Observed) -> None:
        told, slo = self._of(service), observed.service.spec.slo
        told.objectives, told.asked = {"ttft": slo.ttft, "tpot": slo.tpot}, observed.desired_replicas

    def told(self, service: Ref, status: Mapping[str, Any]) -> None:
        self._of(service).status.update(status)

    def gone(self, service: Ref) -> None:
        self._services.pop(service, None)

    def wished(self, service: Ref, decision: PoolDecision) -> None:
        self._of(service).decisions[decision.pool] = decision

    def changed(self, service: Ref, decision: PoolDecision) -> None:
        direction = "up" if decision.desired > decision.current else "down"
        self._of(service).changes[decision.pool, direction, decision.reason] += 1

    def forgot(self, service: Ref) -> None:
        if service in self._services:
            self._services[service].decisions.clear()

    def collect(self) -> Iterator[Metric]:
        services = self._services if self.leads() else {}
        yield from _conditions(services)
        yield from _pools(services)
        yield from _decisions(services)
        objectives = _gauge("objective_seconds", "Objective of the manifest, ttft or tpot", (*_SERVICE, "objective"))
        for (ref, told), name in ((each, name) for each in services.items() for name in each[1].objectives):
            objectives.add_metric((ref.namespace, ref.name, name), told.objectives[name])
        yield objectives

    def _of(self, service: Ref) -> _Told:
        return self._services.setdefault(service, _Told())


_Services = Mapping[Ref, _Told]


def _gauge(name: str, text: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, text, labels=labels)


def _conditions(services: _Services) -> Iterator[Metric]:
    family = _gauge("condition", "1 for each condition as it is now", (*_SERVICE, "type", "status", "reason"))
    for ref, told in services.items():
        for each in conditions.known(told.status):
            family.add_metric((ref.namespace, ref.name, each["type"], each["status"], each["reason"]), 1)
    yield family


def _pools(services: _Services) -> Iterator[Metric]:
    asked = _gauge("pool_spec_replicas", "Workers that a pool's scaler asks for", _POOL)
    counts = {
        "desired": _gauge("pool_desired_replicas", "Workers that a pool is to have, within all limits", _POOL),
        "replicas": _gauge("pool_replicas", "Worker pods of a pool", _POOL),
        "ready": _gauge("pool_ready_replicas", "Worker pods that are ready", _POOL),
    }
    capped = _gauge("pool_capped", "1 if a limit keeps a pool from being as large as needed", (*_POOL, "by"))
    for ref, told in services.items():
        for pool, number in told.asked.items():
            asked.add_metric((ref.namespace, ref.name, pool), number)
        for pool, status in told.status.get("pools", {}).items():
            labels = (ref.namespace, ref.name, pool)
            for key, family in counts.items():
                family.add_metric(labels, status[key])
            if by := _capped_by(told, pool, status):
                capped.add_metric((*labels, by), 1)
    yield from (asked, *counts.values(), capped)


def _capped_by(told: _Told, pool: str, status: Mapping[str, Any]) -> str:
    """The field of the manifest, of the plan's limits or the autoscaler's own. A minimum keeps nothing from growing."""
    if "cappedBy" in status and told.asked.get(pool, 0) > status["desired"]:
        return str(status["cappedBy"])
    decision = told.decisions.get(pool)
    return decision.capped_by if decision is not None and decision.needed > decision.desired else ""


def _decisions(services: _Services) -> Iterator[Metric]:
    wish = _gauge("scaling_wish", "Workers that the autoscaler sets, or would", _POOL)
    needed = _gauge("scaling_needed", "Workers that the signals ask for", _POOL)
    missing = _gauge("scaling_missing_signals", "Signals without which the pool does not shrink", _POOL)
    changes = CounterMetricFamily(
        _PREFIX + "scaling_changes", "Changes by the autoscaler", labels=(*_POOL, "direction", "reason")
    )
    for ref, told in services.items():
        for pool, decision in told.decisions.items():
            labels = (ref.namespace, ref.name, pool)
            wish.add_metric(labels, decision.desired)
            needed.add_metric(labels, decision.needed)
            missing.add_metric(labels, len(decision.missing))
        for what, count in told.changes.items():
            changes.add_metric((ref.namespace, ref.name, *what), count)
    yield from (wish, needed, missing, changes)
