"""From what was observed to what to do next: phases of actions, the status, and when to look again. Pure.

Level-triggered: the same observation gives the same plan, and nothing is remembered between two of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from legato_operator import checks, gateway_plan, limits, owned, status
from legato_operator.actions import Action, Delete, Phase, Release
from legato_operator.cluster import Ref, is_leaving, ref_of, uid_of
from legato_operator.manifests import common, worker
from legato_operator.observed import Observed
from legato_operator.placement import Placement
from legato_operator.pool_plan import PoolPlan, plan_pool

LOOK_FOR_MISSING = 3.0  # seconds: nothing tells when what a manifest names is made
_HARMLESS = ("own", "tell")  # phases in which no pod comes or goes


@dataclass(frozen=True)
class Plan:
    phases: tuple[Phase, ...]
    status: Mapping[str, Any]
    look_again: float


def plan(observed: Observed, placement: Placement) -> Plan:
    """What to do next for one service."""
    if observed.deleting:
        return _plan_end(observed, placement)
    if problems := checks.unavailable(observed.service.spec, in_containers=placement.containers is not None):
        return Plan((), status.refused(observed, problems), placement.look_again_settled)
    service = observed.service
    targets = limits.targets(service.spec, observed.wishes)
    pools = {
        name: plan_pool(observed, name, worker.template(service, name, placement), target.replicas)
        for name, target in targets.items()
    }
    front = gateway_plan.plan_gateway(observed, placement)
    phases: tuple[Phase, ...] = (
        Phase("own", tuple(owned.make(observed, targets, placement))),
        Phase("start", tuple(action for made in pools.values() for action in made.start)),
        Phase("gateway", front.start + front.leave),
        Phase("leave", tuple(action for made in pools.values() for action in made.leave)),
        Phase("clear", (*_clear(observed, pools), *owned.unwanted(observed, placement))),
        Phase("tell", tuple(owned.tell(observed, tuple(pools)))),
    )
    settled = all(made.settled for made in (front, *pools.values()))
    told = status.of(observed, targets, pools, front, placement)
    again = placement.look_again_settled if settled else placement.look_again
    if observed.missing:
        phases, again = tuple(phase for phase in phases if phase.name in _HARMLESS), LOOK_FOR_MISSING
    return Plan(tuple(phase for phase in phases if phase.actions), told, again)


def _clear(observed: Observed, pools: Mapping[str, PoolPlan]) -> Iterator[Action]:
    """Empty pools that the spec no longer has, once the others can do their work."""
    if not all(made.settled for made in pools.values()):
        return
    for name in (limits.PREFILL, limits.DECODE):
        if name not in pools:
            yield from plan_pool(observed, name, {}, 0).leave


def _plan_end(observed: Observed, placement: Placement) -> Plan:
    """The gateway goes first, so that its streams end while workers still compute; then workers, then the rest."""
    told = status.deleting(observed)
    waiting = [pod for pod in observed.pods if not pod.lost]
    deployment = observed.find(owned.DEPLOYMENT, common.pool_name(observed.service, common.GATEWAY))
    if deployment is None and not waiting:
        phases = Phase("clear", tuple(owned.all_of(observed))), Phase("release", (Release(),))
        return Plan(tuple(phase for phase in phases if phase.actions), told, placement.look_again)
    ending = [] if deployment is None or is_leaving(deployment) else [Delete(ref_of(deployment), uid_of(deployment))]
    gateways = [pod for pod in waiting if pod.pool == common.GATEWAY]
    namespace = observed.service.metadata.namespace
    # Gateways without a revision are their Deployment's: they go with it.
    pods = [pod for pod in gateways if pod.revision] if gateways or deployment else waiting
    ending += [Delete(Ref("Pod", namespace, pod.name), pod.uid) for pod in pods if not pod.leaving]
    return Plan((Phase("end", tuple(ending)),) if ending else (), told, placement.look_again)
