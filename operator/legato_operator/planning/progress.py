"""Conditions Progressing and Upgraded: the state of rollouts, scaling and upgrades. Pure."""

from collections.abc import Mapping

from legato_operator.api import conditions
from legato_operator.api.conditions import Condition
from legato_operator.observing.observed import Observed, Pod
from legato_operator.planning import checks, failure
from legato_operator.planning.failure import Failure
from legato_operator.planning.pools.limits import PoolTarget
from legato_operator.planning.readiness import messages
from legato_operator.planning.rollout.canary import CanaryPhase
from legato_operator.planning.rollout.revisions import Revisions
from legato_operator.planning.rollout.upgrades import UpgradeState
from legato_operator.planning.service_step import ServiceStep


def progressing(observed: Observed, step: ServiceStep) -> Condition:
    """Returns the condition Progressing: missing objects, failures, pending starts, or changes in progress."""
    kind = conditions.PROGRESSING
    if observed.missing:
        return Condition(kind, False, conditions.NOT_FOUND, checks.text(observed.missing))
    if failures := {pool: each.failure for pool, each in step.revisions.items() if each.failure}:
        return _failed(failures, step.revisions)
    unschedulable = [pod for pod in observed.pods if pod.unschedulable and not pod.leaving]
    waiting = [pod for made in step.parts.values() for pod in made.waiting]
    moving = {name: made for name, made in step.parts.items() if not made.settled}
    counts = ", ".join(f"{name} {made.current} of {made.target}" for name, made in moving.items())
    if waiting:
        return Condition(kind, True, conditions.CAPACITY_UNAVAILABLE, messages(waiting))
    if moving and unschedulable:
        return Condition(kind, True, conditions.UNSCHEDULABLE, messages(unschedulable))
    retrying = [pod for pod in observed.pods if failure.tries_again(pod) and not pod.leaving]
    if moving and retrying:
        return Condition(kind, True, conditions.RETRYING, messages(retrying))
    if disruptions := [text for pod in observed.pods if pod.pool in moving and (text := _disruption(pod))]:
        return Condition(kind, True, conditions.DISRUPTED, "; ".join((counts, *disruptions)))
    if step.canary.phase is not None:
        inconclusive = step.canary.phase is CanaryPhase.INCONCLUSIVE
        return Condition(kind, not inconclusive, step.canary.phase.value, step.canary.message)
    if any(made.old for made in moving.values()):
        return Condition(kind, True, conditions.ROLLING_OUT, counts)
    if moving:
        return Condition(kind, True, conditions.SCALING, counts)
    if capped := _capped(observed, step.targets):
        return Condition(kind, False, conditions.CAPPED, capped)
    return Condition(kind, False, conditions.UP_TO_DATE)


def upgraded(observed: Observed, step: ServiceStep) -> Condition:
    """Returns the condition Upgraded, about the pods that this version of the operator builds."""
    kind = conditions.UPGRADED
    if step.upgrade is UpgradeState.WAITING:
        text = "; ".join(
            part for part in ("its pods stay as they are until it is upgraded", observed.upgrades_stopped) if part
        )
        return Condition(kind, False, conditions.AWAITING_UPGRADE, text)
    if step.upgrade is UpgradeState.EDITED:
        return Condition(kind, False, conditions.ROLLING_OUT, "with a change of the manifest")
    if step.upgrade is UpgradeState.CURRENT:
        return Condition(kind, True, conditions.UP_TO_DATE)
    why = [f"{role}: {each.failure.message}" for role, each in step.revisions.items() if each.failure is not None]
    if observed.missing:
        why.append(checks.text(observed.missing))
    if why:
        text = f"{'; '.join(why)}; no other service is upgraded meanwhile"
        return Condition(kind, False, conditions.UPGRADE_FAILED, text)
    return Condition(kind, False, conditions.UPGRADING)


def _disruption(pod: Pod) -> str:
    """Returns the cause, node and restarts of a worker or gateway that was lost; empty for others."""
    cause = pod.disrupted
    if not cause and not pod.ready and not pod.on_its_way_out:
        cause = f"not seen since {pod.unseen_since}" if pod.unseen_since else ""
        cause = cause or (pod.ended if pod.restarts or pod.failed else "")
    if not cause:
        return ""
    restarts = f" ({pod.restarts} restarts)" if pod.restarts > 1 else " (1 restart)" if pod.restarts else ""
    return f"{pod.name}{f' on {pod.node}' if pod.node else ''}: {cause}{restarts}"


def _capped(observed: Observed, targets: Mapping[str, PoolTarget]) -> str:
    """Lists every pool that is not of its desired size, with the field that limits it."""
    desired = {pool: observed.desired_replicas.get(pool, "the initial number") for pool in targets}
    limited = {pool: target for pool, target in targets.items() if target.capped_by}
    return "; ".join(
        f"{pool} is {target.replicas} instead of {desired[pool]}, by {target.capped_by}"
        for pool, target in limited.items()
    )


def _failed(failures: Mapping[str, Failure], revisions: Mapping[str, Revisions]) -> Condition:
    """Returns the condition of a failed revision: the failures and the reaction to them."""
    pools: dict[str, list[str]] = {}
    for pool, each in failures.items():
        pools.setdefault(each.message, []).append(f"{pool}: revision {revisions[pool].desired_name}")
    messages = [f"{', '.join(concerned)}: {message}" for message, concerned in pools.items()]
    if any(revisions[pool].rolled_back for pool in failures):
        messages.append("rolling back to the last good revision")
    elif any(revisions[pool].good is not None for pool in failures):
        messages.append("the last good revision keeps serving")
    return Condition(conditions.PROGRESSING, False, next(iter(failures.values())).reason, "; ".join(messages))
