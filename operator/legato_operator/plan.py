"""From what was observed to what to do next: phases of actions, the status, and when to look again. Pure.

Level-triggered: the same observation gives the same plan, and nothing is remembered between two of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from legato_operator import checks, gateway_plan, limits, status
from legato_operator.actions import SCALER, Action, Apply, Delete, MakeToken, Phase, Release
from legato_operator.cluster import Ref
from legato_operator.manifests import common, pool, worker
from legato_operator.observed import Observed
from legato_operator.placement import Placement
from legato_operator.pool_plan import PoolPlan, plan_pool

LOOK_AGAIN = 0.5  # seconds, while something is moving: workers' own state sends no events
LOOK_AGAIN_SETTLED = 5.0


@dataclass(frozen=True)
class Plan:
    phases: tuple[Phase, ...]
    status: Mapping[str, Any]
    look_again: float


def plan(observed: Observed, placement: Placement) -> Plan:
    """What to do next for one service."""
    if observed.deleting:
        return _plan_end(observed)
    if problems := checks.unavailable(observed.service.spec):
        return Plan((), status.refused(observed, problems), LOOK_AGAIN_SETTLED)
    service = observed.service
    targets = limits.targets(service.spec, observed.wishes)
    pools = {
        name: plan_pool(observed, name, worker.template(service, name, placement), target.replicas)
        for name, target in targets.items()
    }
    front = gateway_plan.plan_gateway(observed, placement)
    phases = (
        Phase("own", tuple(_own(observed, targets))),
        Phase("start", tuple(action for made in pools.values() for action in made.start)),
        Phase("gateway", front.start + front.leave),
        Phase("leave", tuple(action for made in pools.values() for action in made.leave)),
        Phase("clear", tuple(_clear(observed, pools))),
    )
    settled = all(made.settled for made in (front, *pools.values()))
    told = status.of(observed, targets, pools, front)
    return Plan(tuple(p for p in phases if p.actions), told, LOOK_AGAIN_SETTLED if settled else LOOK_AGAIN)


def _own(observed: Observed, targets: Mapping[str, limits.Target]) -> Iterator[Action]:
    """Token and pools. The wish is applied once; afterwards it belongs to whoever scales, unless it is fixed."""
    if not observed.has_token:
        yield MakeToken()
    service = observed.service
    for name, target in targets.items():
        yield Apply(pool.worker_pool(service, name))
        if name not in observed.wishes or service.spec.scaling.mode == "Fixed":
            yield Apply(pool.wish(service, name, target.replicas), manager=SCALER)


def _clear(observed: Observed, pools: Mapping[str, PoolPlan]) -> Iterator[Action]:
    """Empty pools that the spec no longer has, once the others can do their work."""
    if not all(made.settled for made in pools.values()):
        return
    for name in (limits.PREFILL, limits.DECODE):
        if name not in pools:
            yield from plan_pool(observed, name, {}, 0).leave


def _plan_end(observed: Observed) -> Plan:
    """The gateway goes first, so that its streams end while workers still compute; then workers, then the rest."""
    namespace = observed.service.metadata.namespace
    gateways = observed.of_pool(common.GATEWAY)
    pods = gateways or observed.pods
    ending = tuple(Delete(Ref("Pod", namespace, pod.name), pod.uid) for pod in pods if not pod.leaving)
    told = status.deleting(observed)
    if pods:
        return Plan((Phase("end", ending),) if ending else (), told, LOOK_AGAIN)
    return Plan((Phase("release", (Release(),)),), told, LOOK_AGAIN)
