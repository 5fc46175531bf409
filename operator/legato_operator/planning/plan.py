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
from legato_operator.planning.pools import limits
from legato_operator.planning.pools.gpu_budget import GpuBudget, plan_within_budget
from legato_operator.planning.pools.limits import Targets
from legato_operator.planning.pools.pool_plan import PoolPlan, plan_pool, pool_rollouts
from legato_operator.planning.rollout import canary, revisions, upgrades
from legato_operator.planning.rollout.canary import CanaryPhase
from legato_operator.planning.rollout.revisions import Revisions
from legato_operator.planning.rollout.rolling_update import configured, is_proven, stop
from legato_operator.planning.rollout.upgrades import Upgrade, UpgradeState
from legato_operator.planning.service_step import ServiceRevisions, ServiceStep

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
    if refusal := checks.refusal(observed.service.spec, observed.generation, placement):
        refused = status.refused_status(observed.pods, observed.status, refusal, observed.timestamp)
        return Plan((), refused, placement.resync_after)
    step = _decide(observed, placement)
    phases = tuple(phase for phase in _phases(observed, placement, step) if phase.actions)
    new_status = status.service_status(observed, placement, step)
    if observed.missing:
        harmless = tuple(phase for phase in phases if phase.name in _HARMLESS)
        return Plan(harmless, new_status, RECHECK_MISSING_AFTER)
    return Plan(phases, new_status, _requeue_after(observed, placement, step, new_status))


def _decide(observed: Observed, placement: PodPlacement) -> ServiceStep:
    """Decides sizes, then revisions, then the gateway's step, then the pools' steps within the GPU budget."""
    spec = observed.service.spec
    targets = limits.targets(spec, observed.desired_replicas, placement.gpu_resources)
    upgrade = upgrades.assess(observed, targets, placement)
    chosen = _choose_revisions(observed, targets, upgrade)
    gateway = gateway_plan.plan_gateway(observed, placement, chosen.gateway)
    gateway_ready = gateway.settled and not gateway.start and chosen.gateway_may_serve
    budget = GpuBudget(spec.scaling.gpu_budget, placement.gpu_resources)
    unblocked = gateway_ready or not chosen.gateway.differ
    pools, starts = plan_within_budget(observed, budget, chosen.pools, chosen.rollouts, unblocked)
    good = gateway_ready and _are_whole(pools, upgrade.state)
    return ServiceStep(targets, upgrade.state, chosen.by_role, pools, starts, gateway, good, chosen.canary)


def _choose_revisions(observed: Observed, targets: Targets, upgrade: Upgrade) -> ServiceRevisions:
    """Chooses the pools' revisions first: the gateway follows them, and a failing gateway stops their rollouts."""
    pools = revisions.choose_for_pools(observed, upgrade.templates)
    compared = canary.assess(observed, pools, pool_rollouts(observed, pools, targets), upgrade.state)
    pools = canary.fail(pools, compared)
    rollouts = canary.apply_to(pool_rollouts(observed, pools, targets), compared)
    proven, rolled_back = is_proven(rollouts), any(each.rolled_back for each in pools.values())
    gateway = revisions.choose_for_gateway(observed, upgrade.templates[common.GATEWAY], proven, rolled_back)
    return ServiceRevisions(
        by_role={**pools, common.GATEWAY: gateway},
        rollouts=stop(rollouts) if gateway.failure else rollouts,
        gateway_may_serve=proven and not (rolled_back or gateway.rolled_back),
        canary=compared,
    )


def _phases(observed: Observed, placement: PodPlacement, step: ServiceStep) -> Iterator[Phase]:
    """Yields the phases in order, also empty ones."""
    pools = step.pools.values()
    yield Phase("note", tuple(routes.note(observed, placement)))
    yield Phase("own", (*revisions.keep_spec(observed), *owned.make(observed, step.targets, placement)))
    yield Phase("share", tuple(canary.share_out(observed, step.canary)))
    yield Phase("recall", tuple(action for made in pools for action in made.recall))
    yield Phase("start", step.starts)
    yield Phase("gateway", step.gateway.start + step.gateway.leave)
    yield Phase("leave", tuple(action for made in pools for action in made.leave))
    yield Phase("keep", tuple(revisions.keep(observed, step.revisions)) if step.good else ())
    yield Phase("clear", (*_clear(observed, step), *owned.obsolete(observed, step.targets, placement)))
    yield Phase("report", tuple(owned.report(observed, step.targets)))


def _requeue_after(
    observed: Observed, placement: PodPlacement, step: ServiceStep, new_status: Mapping[str, Any]
) -> float:
    """Returns the seconds until the next pass, unless an event comes first."""
    rests = all(made.settled or made.resting for made in step.parts.values())
    rests = rests and not _will_roll_back(observed, step.revisions)
    again = placement.resync_after if rests else placement.requeue_after
    if observed.token is not None and observed.token.rotating:
        again = min(again, placement.resync_after / _PASSES_IN_ROTATION)
    if placement.containers is not None:
        again = routes.recheck_after(observed, again)
    if conditions.find(new_status, conditions.ADAPTERS_READY).get("reason") == conditions.ADAPTERS_PENDING:
        again = min(again, adapters.RECHECK_AFTER)
    if step.canary.phase in (CanaryPhase.COMPARING, CanaryPhase.INCONCLUSIVE):
        again = min(again, canary.CHECK_EVERY)
    if any(pod.unreached for pod in observed.pods):
        again = min(again, RECHECK_UNREACHED_AFTER)
    return again


def _are_whole(pools: Mapping[str, PoolPlan], upgrade: UpgradeState) -> bool:
    """True if all desired workers run and prove their revision.

    A service at zero proves nothing, except in its upgrade: services with workers were upgraded before it.
    """
    proven = upgrade is UpgradeState.UPGRADING or any(made.target for made in pools.values())
    return proven and all(made.whole for made in pools.values())


def _will_roll_back(observed: Observed, revisions: Mapping[str, Revisions]) -> bool:
    """True if the next pass will roll back, because it reads this pass's failure from the status."""
    failed = any(each.failure and each.good is not None and not each.rolled_back for each in revisions.values())
    return failed and observed.service.spec.rollout.rolls_back


def _clear(observed: Observed, step: ServiceStep) -> Iterator[Action]:
    """Yields the removal of old revisions, and of workers in pools that the spec no longer has.

    These workers stay until the other pools have settled, or wait for resources that they occupy.
    """
    yield from revisions.superseded(observed)
    if any(each.failure for each in step.revisions.values()):
        return
    pools = step.pools.values()
    if not (all(made.settled for made in pools) or any(made.held_back for made in pools)):
        return
    for name in roles.BOTH:
        if name not in step.pools:
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
