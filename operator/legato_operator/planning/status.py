"""The status of a service and its pools: counts and conditions, from the plan's observation. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from legato_operator.api import conditions, roles
from legato_operator.api.conditions import Condition
from legato_operator.cluster import Object
from legato_operator.manifests import common
from legato_operator.manifests.placement import PodPlacement
from legato_operator.observing.observed import Observed, Pod, Refusal, WorkerState
from legato_operator.planning import adapters, progress, readiness, routes
from legato_operator.planning.pools.limits import PoolTarget
from legato_operator.planning.pools.pool_plan import PoolPlan
from legato_operator.planning.rollout.revisions import Revisions
from legato_operator.planning.service_step import ServiceStep

_PARTS = {
    conditions.PREFILL_READY: roles.PREFILL,
    conditions.DECODE_READY: roles.DECODE,
    conditions.GATEWAY_READY: common.GATEWAY,
}
# Removed once the service has nothing to report under them.
_OPTIONAL = {conditions.ROUTE_READY, conditions.ADAPTERS_READY, conditions.KERNELS_READY, conditions.KV_TIERS_READY}
_NEEDED = {conditions.DECODE_READY, conditions.GATEWAY_READY}


def service_status(observed: Observed, placement: PodPlacement, step: ServiceStep) -> dict[str, Any]:
    """Returns the status of a service that is not being deleted."""
    parts, transport = readiness.parts(observed, step.pools), readiness.transport(observed)
    progressing = progress.progressing(observed, step)
    ready = readiness.ready(observed, step.revisions, parts, transport, progressing)
    news = (ready, *parts, transport, *_optional(observed, placement, step), progressing)
    pools = {
        name: _pool(observed, name, step.revisions[name], made, step.targets[name]) for name, made in step.pools.items()
    }
    return _status(observed, news) | {
        "pools": pools,
        common.GATEWAY: _revision(step.revisions[common.GATEWAY]),
        "model": observed.service.served_name,
        "canary": step.canary.record,
        **(routes.status_fields(observed) if placement.containers else {}),
        **_url(observed, placement),
    }


def _optional(observed: Observed, placement: PodPlacement, step: ServiceStep) -> Iterator[Condition]:
    """Yields the conditions that only some services have."""
    if placement.containers:
        yield progress.upgraded(observed, step)
    route = routes.condition(observed) if placement.containers else None
    adapted = adapters.condition(observed, step.revisions, placement)
    reported = (route, adapted, readiness.kernels(observed), readiness.kv_tiers(observed))
    yield from (condition for condition in reported if condition is not None)


def _url(observed: Observed, placement: PodPlacement) -> dict[str, str]:
    """Returns the gateways' URL, where the placement gives services one."""
    service = observed.service
    scheme = "https" if service.spec.gateway.tls else "http"
    mine = {"scheme": scheme, "service": service.metadata.name, "namespace": service.metadata.namespace}
    return {"url": placement.url.format(**mine)} if placement.url else {}


def pool_status(observed: Observed, pool: str, target: PoolTarget, item: Object) -> dict[str, Any]:
    """Returns the status of a WorkerPool: the fields for its scaler, the size within limits, and the autoscaler's last
    decision, if any."""
    decided = (observed.status.get("scaling") or {}).get("pools", {}).get(pool, {})
    staying = [pod for pod in observed.of_pool(pool) if not pod.leaving and pod.draining_since is None]
    ready = sum(pod.ready for pod in staying)
    selector = common.selector(observed.service, role=pool, serving="true")
    return {
        "observedGeneration": item["metadata"]["generation"],
        "replicas": len(staying),
        "readyReplicas": ready,
        "effectiveReplicas": target.replicas,
        "ready": f"{ready}/{target.replicas}",
        "cappedBy": target.capped_by or None,
        "selector": ",".join(f"{key}={value}" for key, value in sorted(selector.items())),
        "workers": sorted(pod.uid for pod in observed.of_pool(pool) if not pod.orphaned),
        "recommended": decided.get("recommended"),
        "reason": decided.get("reason"),
    }


def refused_status(pods: Sequence[Pod], status: Mapping[str, Any], refusal: Refusal, timestamp: str) -> dict[str, Any]:
    """Returns the status of a service without a usable spec; only parts that run are reported."""
    known = conditions.known(status)
    progressing = Condition(conditions.PROGRESSING, False, refusal.reason, refusal.message)
    parts = {kind: readiness.any_ready(kind, mine) for kind, pool in _PARTS.items() if (mine := _of_pool(pods, pool))}
    serves = parts.keys() >= _NEEDED and all(part.status for part in parts.values())
    ready = replace(progressing, type=conditions.READY)
    if serves:
        ready = Condition(conditions.READY, True, conditions.ALL_READY)
    updated = conditions.update(known, [ready, *parts.values(), progressing], refusal.generation, timestamp)
    return {"observedGeneration": refusal.generation, "conditions": updated}


def deleting_status(observed: Observed) -> dict[str, Any]:
    """Returns the status of a service that is being deleted."""
    left = ", ".join(pod.name for pod in observed.pods)
    news = [Condition(kind, False, conditions.DELETING, left) for kind in (conditions.READY, conditions.PROGRESSING)]
    return _status(observed, news)


def _of_pool(pods: Sequence[Pod], pool: str) -> list[Pod]:
    return [pod for pod in pods if pod.pool == pool and pod.draining_since is None]


def _status(observed: Observed, news: Sequence[Condition]) -> dict[str, Any]:
    """Returns the status with these conditions, each with its generation; the newest generation may be refused."""
    known = conditions.known(observed.status)
    if observed.unknown:
        listed = f"this version of the operator does not know {', '.join(observed.unknown)}"
        text = "; ".join(part for part in (news[-1].message, listed) if part)
        news = [*news[:-1], replace(news[-1], message=text)]
    updated = conditions.update(known, news, observed.generation, observed.timestamp)
    newest = observed.generation
    if refusal := observed.refusal:
        newest = refusal.generation
        progressing = _with_refusal(observed, refusal, news[-1])
        updated = [*updated[:-1], *conditions.update(known, [progressing], newest, observed.timestamp)]
    updated_types = {condition.type for condition in news} | _OPTIONAL
    kept = [condition for condition in known if condition["type"] not in updated_types]
    return {"observedGeneration": newest, "conditions": [*updated, *kept]}


def _with_refusal(observed: Observed, refusal: Refusal, progressing: Condition) -> Condition:
    """Returns the condition of a refused newest spec, with the progress of the last usable one."""
    progress = ": ".join(text for text in (progressing.reason, progressing.message) if text)
    text = f"{refusal.message}; generation {observed.generation} stays in use ({progress})"
    return Condition(conditions.PROGRESSING, False, refusal.reason, text)


def _pool(observed: Observed, pool: str, revisions: Revisions, made: PoolPlan, target: PoolTarget) -> dict[str, Any]:
    pods = observed.of_pool(pool)
    ready = sum(pod.serves and not pod.on_its_way_out for pod in pods)
    ranks = roles.ranks(observed.service.spec, pool)
    counts = {"replicas": len(pods), "ready": ready, "desired": made.target, "ranks": ranks}
    capped = {"cappedBy": target.capped_by} if target.capped_by else {}
    states = [state for pod in pods if (state := pod.recent_state) is not None]
    return {**counts, **_limits(states), **capped, **_revision(revisions)}


def _limits(states: Sequence[WorkerState]) -> dict[str, int]:
    """Returns the smallest limits that workers report; with Auto, each worker derives them from its memory."""
    lengths, running = [each.max_length for each in states], [each.max_running for each in states]
    least = {"maxLength": min(filter(None, lengths), default=0), "maxRunning": min(filter(None, running), default=0)}
    return {name: number for name, number in least.items() if number}


def _revision(revisions: Revisions) -> dict[str, Any]:
    """Returns the desired revision and its failure, if any."""
    desired = revisions.desired_name
    if revisions.failure is None:
        return {"revision": desired}
    reason, message = revisions.failure.reason, revisions.failure.message
    return {"revision": desired, "failedRevision": desired, "failureReason": reason, "failure": message}
