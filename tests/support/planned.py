"""Builders for tests of planning: what a pass of the operator observes of a service, and what its plan does."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from msgspec import structs

from legato_operator.api import conditions, parsing
from legato_operator.api.resources import InferenceService
from legato_operator.cluster import Object
from legato_operator.observing.observed import Observed, Pod, WorkerState
from legato_operator.planning.plan import Plan
from legato_protocol.wire.demand import DemandReport

A = TypeVar("A")


def observed(
    given: InferenceService | Mapping[str, Any], objects: Iterable[Object] = (), pods: Iterable[Pod] = (), **more: Any
) -> Observed:
    """A service, or its manifest, whose token exists, at 1,000 s."""
    service = given if isinstance(given, InferenceService) else parsing.read_service(given)
    at = (1000.0, "2026-01-01T00:00:00Z")
    empty = Observed(service, "uid", 1, {}, False, tuple(objects), tuple(pods), True, *at)
    return dataclasses.replace(empty, **more)


def pod(name: str, pool: str, revision: str = "", **more: Any) -> Pod:
    """A ready pod; a worker answers, and is idle."""
    state = None if pool == "gateway" else WorkerState(0, False, "ucx:tcp")
    ready = Pod(name, f"uid-{name}", pool, revision, name, True, False, address="10.0.0.1:8082", state=state)
    return dataclasses.replace(ready, **more)


def pools(sizes: Mapping[str, int]) -> list[Object]:
    """Pools of these sizes, as far as an autoscaler looks at them."""
    return [
        {"kind": "WorkerPool", "metadata": {"name": f"demo-{role}"}, "spec": {"role": role, "replicas": count}}
        for role, count in sizes.items()
    ]


def report(gateway: str = "g", **more: Any) -> DemandReport:
    """The report of a gateway without requests or workers."""
    return structs.replace(DemandReport(gateway, 1e6, (), {}, (), 0.0, {}, (), 0, 0, 0, ()), **more)


def actions(made: Plan, kind: type[A]) -> list[A]:
    """The plan's actions of that kind, in order."""
    return [action for phase in made.phases for action in phase.actions if isinstance(action, kind)]


def condition(made: Plan, kind: str) -> Mapping[str, Any]:
    return conditions.find(made.status, kind)
