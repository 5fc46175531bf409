"""Plans the next step for one service: phases of actions, the status, and the time of the next pass. Pure.

Level-triggered: the same observation gives the same plan, and no state is kept between plans.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from legato_operator.api import conditions, roles
from legato_operator.cluster import Ref, is_leaving, ref_of, uid_of
from legato_operator.manifests import common
from legato_operator.manifests.placement import PodPlacement
from legato_operator.observing.observed import Observed
from legato_operator.planning import adapters, checks, gateway_plan, owned, routes, status
from legato_operator.planning.actions import Action, Delete, Phase, Release
from legato_operator.planning.pools import gpu_budget, limits
from legato_operator.planning.pools.gpu_budget import GpuBudget
from legato_operator.planning.pools.pool_plan import PoolPlan, plan_pool, plan_pools, pool_rollouts
from legato_operator.planning.rollout import revisions, upgrades
from legato_operator.planning.rollout.revisions import Revisions
from legato_operator.planning.rollout.rolling_update import configured, is_proven, stop
from legato_operator.planning.rollout.upgrades import Upgrade, UpgradeState

RECHECK_MISSING_AFTER = 3.0  # seconds: no event says that a referenced object was created
_PASSES_IN_ROTATION = 5  # per resync period: pods report the tokens they have read only when asked
RECHECK_UNREACHED_AFTER = 2.0  # seconds: no event says that a gateway has connected to a worker
_HARMLESS = ("note", "own", "report")  # phases that start or stop no pod


@dataclass(frozen=True)
class Plan:
    phases: tuple[Phase, ...]
    status: Mapping[str, Any]
    requeue_after: float


def plan(observed: Observed, placement: PodPlacement) -> Plan:
    """Returns the next step for one service."""
    if observed.deleting:
        return _plan_end(observed, placement)
    spec = observed.service.spec
    if refusal := checks.refusal(spec, observed.generation, placement):
        refused = status.refused_status(observed.pods, observed.status, refusal, observed.timestamp)
        return Plan((), refused, placement.resync_after)
    targets = limits.targets(spec, observed.desired_replicas, placement.gpu_resources)
    upgrade = upgrades.assess(observed, targets, placement)
    by_pool = revisions.choose_for_pools(observed, upgrade.templates)
    rollouts = pool_rollouts(observed, by_pool, targets)
    proven, pools_rolled_back = is_proven(rollouts), any(each.rolled_back for each in by_pool.values())
    gateways = revisions.choose_for_gateway(observed, upgrade.templates[common.GATEWAY], proven, pools_rolled_back)
    rollouts = stop(rollouts) if gateways.failure else rollouts
    everything = {**by_pool, common.GATEWAY: gateways}
    deployment = gateway_plan.plan_gateway(observed, placement, gateways)
    gateway_is_old = not proven or pools_rolled_back or gateways.rolled_back
    gateway_ready = deployment.settled and not deployment.start and not gateway_is_old
    budget = GpuBudget(spec.scaling.gpu_budget, placement.gpu_resources)
    bounds = gpu_budget.bounds(observed, budget, by_pool, rollouts)
    ready = gateway_ready or not gateways.differ
    pools, starts = gpu_budget.admit(observed, budget, plan_pools(observed, by_pool, rollouts, ready, bounds))
    if gpu_budget.is_stuck(observed, rollouts, pools):
        bounds = gpu_budget.one_less(rollouts, bounds)
        pools, starts = gpu_budget.admit(observed, budget, plan_pools(observed, by_pool, rollouts, ready, bounds))
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
    new_status = status.service_status(observed, targets, everything, pools, deployment, placement, upgrade.state)
    rests = all(made.settled or made.resting for made in (deployment, *pools.values()))
    rests = rests and not _will_roll_back(observed, everything)
    again = _requeue_after(observed, placement, rests, new_status)
    if observed.missing:
        phases, again = tuple(phase for phase in phases if phase.name in _HARMLESS), RECHECK_MISSING_AFTER
    return Plan(tuple(phase for phase in phases if phase.actions), new_status, again)


def _requeue_after(observed: Observed, placement: PodPlacement, rests: bool, new_status: Mapping[str, Any]) -> float:
    """Returns the seconds until the next pass, unless an event comes first."""
    again = placement.resync_after if rests else placement.requeue_after
    if observed.token is not None and observed.token.rotating:
        again = min(again, placement.resync_after / _PASSES_IN_ROTATION)
    if placement.containers is not None:
        again = routes.recheck_after(observed, again)
    if conditions.find(new_status, conditions.ADAPTERS_READY).get("reason") == conditions.ADAPTERS_PENDING:
        again = min(again, adapters.RECHECK_AFTER)
    if any(pod.unreached for pod in observed.pods):
        again = min(again, RECHECK_UNREACHED_AFTER)
    return again


def _are_whole(pools: Mapping[str, PoolPlan], upgrade: Upgrade) -> bool:
    """True if all desired workers run and prove their revision.

    A service at zero proves nothing, except in its upgrade: services with workers were upgraded before it.
    """
    proven = upgrade.state is UpgradeState.UPGRADING or any(made.target for made in pools.values())
    return proven and all(made.whole for made in pools.values())


def _will_roll_back(observed: Observed, revisions: Mapping[str, Revisions]) -> bool:
    """True if the next pass will roll back, because it reads this pass's failure from the status."""
    failed = any(each.failure and each.good is not None and not each.rolled_back for each in revisions.values())
    return failed and observed.service.spec.rollout.auto_rollback


def _clear(observed: Observed, every: Mapping[str, Revisions], pools: Mapping[str, PoolPlan]) -> Iterator[Action]:
    """Yields the removal of old revisions, and of workers in pools that the spec no longer has.

    These workers stay until the other pools have settled, or wait for resources that they occupy.
    """
    yield from revisions.superseded(observed)
    if any(each.failure for each in every.values()):
        return
    if not (all(made.settled for made in pools.values()) or any(made.held_back for made in pools.values())):
        return
    for name in roles.BOTH:
        if name not in pools:
            yield from plan_pool(observed, name, Revisions({}), 0, configured(observed.service.spec.rollout, 0)).leave


def _plan_end(observed: Observed, placement: PodPlacement) -> Plan:
    """Deletes the gateway first, so that its streams end while workers still compute, then workers, then the rest."""
    new_status = status.deleting_status(observed)
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
        pods = []  # gateways are deleted with their Deployment
    ending += [Delete(Ref("Pod", namespace, pod.name), pod.uid) for pod in pods if not pod.leaving]
    return Plan((Phase("end", tuple(ending)),) if ending else (), new_status, placement.requeue_after)
