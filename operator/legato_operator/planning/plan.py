"""From what was observed to what to do next: phases of actions, the status, and when to look again. Pure.

Level-triggered: the same observation gives the same plan, and nothing is remembered between two of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from legato_operator.api import conditions, roles
from legato_operator.cluster import Ref, is_leaving, ref_of, uid_of
from legato_operator.manifests import common
from legato_operator.manifests.placement import PodPlacement
from legato_operator.observing.observed import Observed
from legato_operator.planning import (
    adapters,
    checks,
    gateway_plan,
    gpu_budget,
    limits,
    owned,
    revisions,
    routes,
    status,
    upgrades,
)
from legato_operator.planning.actions import Action, Delete, Phase, Release
from legato_operator.planning.gpu_budget import GpuBudget
from legato_operator.planning.pool_plan import PoolPlan, plan_pool, plan_pools, standings
from legato_operator.planning.revisions import Revisions
from legato_operator.planning.rollout import configured, is_proven, stopped
from legato_operator.planning.upgrades import Upgrade, UpgradeState

RECHECK_MISSING_AFTER = 3.0  # seconds: nothing tells when what a manifest names is made
_LOOKS_AT_ROTATION = 5  # in the time of one: pods tell only when they are asked what they have read
RECHECK_UNREACHED_AFTER = 2.0  # nothing tells when a gateway has greeted a worker
_HARMLESS = ("note", "own", "report")  # phases in which no pod comes or goes


@dataclass(frozen=True)
class Plan:
    phases: tuple[Phase, ...]
    status: Mapping[str, Any]
    requeue_after: float


def plan(observed: Observed, placement: PodPlacement) -> Plan:
    """What to do next for one service."""
    if observed.deleting:
        return _plan_end(observed, placement)
    spec = observed.service.spec
    if refusal := checks.refusal(spec, observed.generation, placement):
        told = status.refused(observed.pods, observed.status, refusal, observed.timestamp)
        return Plan((), told, placement.resync_after)
    targets = limits.targets(spec, observed.desired_replicas, placement.gpu_resources)
    upgrade = upgrades.of(observed, targets, placement)
    found = revisions.of_pools(observed, upgrade.templates)
    at = standings(observed, found, targets)
    proven, pools_back = is_proven(at), any(each.taken_back for each in found.values())
    gateways = revisions.of_gateway(observed, upgrade.templates[common.GATEWAY], proven, pools_back)
    at = stopped(at) if gateways.failure else at
    everything = {**found, common.GATEWAY: gateways}
    deployment = gateway_plan.plan_gateway(observed, placement, gateways)
    held = not proven or pools_back or gateways.taken_back
    gateway_ready = deployment.settled and not deployment.start and not held
    budget = GpuBudget(spec.scaling.gpu_budget, placement.gpu_resources)
    bounds = gpu_budget.bounds(observed, budget, found, at)
    ready = gateway_ready or not gateways.differ
    pools, starts = gpu_budget.admit(observed, budget, plan_pools(observed, found, at, ready, bounds))
    if gpu_budget.is_stuck(observed, at, pools):
        bounds = gpu_budget.one_less(at, bounds)
        pools, starts = gpu_budget.admit(observed, budget, plan_pools(observed, found, at, ready, bounds))
    good = gateway_ready and _are_whole(pools, upgrade)
    phases: tuple[Phase, ...] = (
        Phase("note", tuple(routes.note(observed, placement))),
        Phase("own", (*revisions.keep_spec(observed), *owned.make(observed, targets, placement))),
        Phase("recall", tuple(action for made in pools.values() for action in made.recall)),
        Phase("start", starts),
        Phase("gateway", deployment.start + deployment.leave),
        Phase("leave", tuple(action for made in pools.values() for action in made.leave)),
        Phase("keep", tuple(revisions.keep(observed, everything)) if good else ()),
        Phase("clear", (*_clear(observed, everything, pools), *owned.obsolete(observed, targets, placement))),
        Phase("report", tuple(owned.report(observed, targets))),
    )
    new_status = status.of(observed, targets, everything, pools, deployment, placement, upgrade.state)
    rests = all(made.settled or made.resting for made in (deployment, *pools.values()))
    rests = rests and not _is_to_be_taken_back(observed, everything)
    again = _look_again_after(observed, placement, rests, new_status)
    if observed.missing:
        phases, again = tuple(phase for phase in phases if phase.name in _HARMLESS), RECHECK_MISSING_AFTER
    return Plan(tuple(phase for phase in phases if phase.actions), new_status, again)


def _look_again_after(observed: Observed, placement: PodPlacement, rests: bool, new_status: Mapping[str, Any]) -> float:
    """In how many seconds, if nothing is told before."""
    again = placement.resync_after if rests else placement.requeue_after
    if observed.token is not None and observed.token.rotating:
        again = min(again, placement.resync_after / _LOOKS_AT_ROTATION)
    if placement.containers is not None:
        again = routes.recheck_after(observed, again)
    if conditions.find(new_status, conditions.ADAPTERS_READY).get("reason") == conditions.ADAPTERS_PENDING:
        again = min(again, adapters.RECHECK_AFTER)
    if any(pod.unreached for pod in observed.pods):
        again = min(again, RECHECK_UNREACHED_AFTER)
    return again


def _are_whole(pools: Mapping[str, PoolPlan], upgrade: Upgrade) -> bool:
    """Whether all that the manifest asks for runs, and something runs at all.

    At zero nothing shows what the operator's own changes do; services with workers have taken their turns before.
    """
    shown = upgrade.state is UpgradeState.TURN or any(made.target for made in pools.values())
    return shown and all(made.whole for made in pools.values())


def _is_to_be_taken_back(observed: Observed, found: Mapping[str, Revisions]) -> bool:
    """Whether the next pass does, which finds in the status what this one saw."""
    failed = any(each.failure and each.good is not None and not each.taken_back for each in found.values())
    return failed and observed.service.spec.rollout.auto_rollback


def _clear(observed: Observed, found: Mapping[str, Revisions], pools: Mapping[str, PoolPlan]) -> Iterator[Action]:
    """Empty pools that the spec no longer has, and let old revisions go, once the others can do their work, or
    cannot for want of what these hold.
    """
    yield from revisions.superseded(observed)
    if any(each.failure for each in found.values()):
        return
    if not (all(made.settled for made in pools.values()) or any(made.held_back for made in pools.values())):
        return
    for name in roles.BOTH:
        if name not in pools:
            yield from plan_pool(observed, name, Revisions({}), 0, configured(observed.service.spec.rollout, 0)).leave


def _plan_end(observed: Observed, placement: PodPlacement) -> Plan:
    """The gateway goes first, so that its streams end while workers still compute; then workers, then the rest."""
    new_status = status.deleting(observed)
    waiting = [pod for pod in observed.pods if not pod.lost]
    deployment = observed.find(common.DEPLOYMENT, common.pool_name(observed.service, common.GATEWAY))
    if deployment is None and not waiting:
        phases = Phase("clear", tuple(owned.all_of(observed))), Phase("release", (Release(),))
        return Plan(tuple(phase for phase in phases if phase.actions), new_status, placement.requeue_after)
    ending = [] if deployment is None or is_leaving(deployment) else [Delete(ref_of(deployment), uid_of(deployment))]
    gateways = [pod for pod in waiting if pod.pool == common.GATEWAY]
    namespace = observed.service.metadata.namespace
    pods = gateways or waiting
    if placement.containers is not None and (gateways or deployment):
        pods = []  # gateways go with their Deployment
    ending += [Delete(Ref("Pod", namespace, pod.name), pod.uid) for pod in pods if not pod.leaving]
    return Plan((Phase("end", tuple(ending)),) if ending else (), new_status, placement.requeue_after)
