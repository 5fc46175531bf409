"""The status of a service and its pools: counts and conditions, from the plan's observation. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from legato_operator.api import conditions, roles
from legato_operator.api.conditions import Condition
from legato_operator.cluster import Object
from legato_operator.manifests import common
from legato_operator.manifests.placement import PodPlacement
from legato_operator.observing import reached
from legato_operator.observing.observed import Observed, Pod, Refusal, WorkerState
from legato_operator.planning import adapters, checks, failure, routes
from legato_operator.planning.failure import Failure
from legato_operator.planning.pools.limits import PoolTarget
from legato_operator.planning.pools.pool_plan import PoolPlan
from legato_operator.planning.rollout.revisions import Revisions
from legato_operator.planning.rollout.upgrades import UpgradeState

_PARTS = {
    conditions.PREFILL_READY: roles.PREFILL,
    conditions.DECODE_READY: roles.DECODE,
    conditions.GATEWAY_READY: common.GATEWAY,
}
_NEEDED = {conditions.DECODE_READY, conditions.GATEWAY_READY}
FAILED_CONNECTIONS = 3  # in a row; one or two may have been to a worker that died


def service_status(
    observed: Observed,
    targets: Mapping[str, PoolTarget],
    revisions: Mapping[str, Revisions],
    pools: Mapping[str, PoolPlan],
    deployment: PoolPlan,
    placement: PodPlacement,
    upgrade: UpgradeState,
) -> dict[str, Any]:
    """Returns the status of a service that is not being deleted."""
    prefill = _pool_ready(observed, conditions.PREFILL_READY, roles.PREFILL, pools)
    decode = _pool_ready(observed, conditions.DECODE_READY, roles.DECODE, pools)
    gateway = _with_retries(_gateway(observed), observed)
    transport = _transport(observed)
    parts = (prefill, decode, gateway)
    degraded = not prefill.status and not _is_first_start(revisions, prefill) and _prefills_locally(observed)
    prefill_optional = degraded or roles.bounds(observed.service.spec, roles.PREFILL).min == 0
    needed = (decode, gateway) if prefill_optional else parts
    waiting = next((part for part in needed if not part.status), None)
    ready = Condition(conditions.READY, True, conditions.ALL_READY)
    if waiting is None and decode.reason == conditions.SCALED_TO_ZERO:
        ready = Condition(conditions.READY, True, conditions.SCALED_TO_ZERO, decode.message)
    elif waiting is not None:
        ready = Condition(conditions.READY, False, waiting.reason, f"{waiting.type}: {waiting.message}")
    elif transport.status is False and observed.service.spec.transfer.required:
        ready = Condition(conditions.READY, False, transport.reason, transport.message)
    elif degraded:
        text = f"decode workers prefill: {prefill.type}: {prefill.message}"
        ready = Condition(conditions.READY, True, conditions.DEGRADED, text)
    progressing = _progressing(observed, targets, revisions, {**pools, common.GATEWAY: deployment})
    if waiting is decode and _wakes_from_zero(observed, decode, gateway, progressing):
        ready = Condition(conditions.READY, True, conditions.SCALED_TO_ZERO, f"first worker starting: {decode.message}")
    if observed.missing and waiting is not None:
        ready = Condition(conditions.READY, False, progressing.reason, progressing.message)
    upgraded = (_upgraded(observed, revisions, upgrade),) if placement.containers else ()
    route = routes.condition(observed) if placement.containers else None
    adapted = adapters.condition(observed, revisions, placement)
    optional = (condition for condition in (route, adapted, _kernels(observed)) if condition is not None)
    news = (ready, *parts, transport, *upgraded, *optional, progressing)
    service = observed.service
    scheme = "https" if service.spec.gateway.tls else "http"
    mine = {"scheme": scheme, "service": service.metadata.name, "namespace": service.metadata.namespace}
    return _status(observed, news) | {
        "pools": {name: _pool(observed, name, revisions[name], made, targets[name]) for name, made in pools.items()},
        common.GATEWAY: _revision(revisions[common.GATEWAY]),
        "model": service.served_name,
        **(routes.status_fields(observed) if placement.containers else {}),
        **({"url": placement.url.format(**mine)} if placement.url else {}),
    }


def _prefills_locally(observed: Observed) -> bool:
    """True if decode workers prefill while no prefill worker is ready, although the spec requires one."""
    spec = observed.service.spec
    return spec.routing.when_prefill_unavailable == "Local" and roles.bounds(spec, roles.PREFILL).min > 0


def _is_first_start(revisions: Mapping[str, Revisions], prefill: Condition) -> bool:
    """True while a new service's prefill workers start normally: it is not ready before they are."""
    ran = any(each.good is not None or each.failure is not None for each in revisions.values())
    starts = prefill.reason in (conditions.STARTING, conditions.DOWNLOADING, conditions.NO_READY_WORKER)
    return starts and not ran


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
        "wish": decided.get("wish"),
        "reason": decided.get("reason"),
    }


def refused_status(pods: Sequence[Pod], status: Mapping[str, Any], refusal: Refusal, timestamp: str) -> dict[str, Any]:
    """Returns the status of a service without a usable spec; only parts that run are reported."""
    known = conditions.known(status)
    progressing = Condition(conditions.PROGRESSING, False, refusal.reason, refusal.message)
    parts = {kind: _any_ready(kind, mine) for kind, pool in _PARTS.items() if (mine := _of_pool(pods, pool))}
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
    optional = {conditions.ROUTE_READY, conditions.ADAPTERS_READY}  # removed when no longer wanted
    updated_types = {condition.type for condition in news} | optional
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
    counts = {"replicas": len(pods), "ready": ready, "desired": made.target}
    capped = {"cappedBy": target.capped_by} if target.capped_by else {}
    return {**counts, **_limits([pod.state for pod in pods if pod.state is not None]), **capped, **_revision(revisions)}


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


def _pool_ready(observed: Observed, kind: str, pool: str, pools: Mapping[str, PoolPlan]) -> Condition:
    if pool not in pools:
        return Condition(kind, True, conditions.NOT_NEEDED, "decode workers prefill")
    if not pools[pool].target:
        return Condition(kind, True, conditions.SCALED_TO_ZERO, "no worker is desired")
    return _any_ready(kind, [pod for pod in observed.of_pool(pool) if pod.draining_since is None])


def _wakes_from_zero(observed: Observed, decode: Condition, gateway: Condition, progressing: Condition) -> bool:
    """True if gateways queue requests, as at zero, while the first decode worker starts normally."""
    at_zero = conditions.find(observed.status, conditions.READY).get("reason") == conditions.SCALED_TO_ZERO
    starts = decode.reason in (conditions.STARTING, conditions.DOWNLOADING, conditions.NO_READY_WORKER)
    return bool(at_zero and starts and gateway.status and progressing.status)


def _gateway(observed: Observed) -> Condition:
    """Returns the gateways' condition, from their Deployment if it has ready replicas, else from the pods."""
    pods = observed.of_pool(common.GATEWAY)
    workers = [pod for pod in observed.of_pool(roles.DECODE) if pod.ready and not pod.on_its_way_out]
    if workers and not any(pod.serves or _is_new(pod) for pod in workers):
        return Condition(conditions.GATEWAY_READY, False, conditions.WORKERS_UNREACHABLE, _unreached(workers))
    deployment = observed.find(common.DEPLOYMENT, common.pool_name(observed.service, common.GATEWAY))
    ready = deployment.get("status", {}).get("availableReplicas", 0) if deployment else 0
    if deployment is None or not ready:
        return _any_ready(conditions.GATEWAY_READY, pods)
    desired = deployment["spec"]["replicas"]
    return Condition(conditions.GATEWAY_READY, True, conditions.ALL_READY, f"{ready} of {desired} ready")


def _with_retries(gateway: Condition, observed: Observed) -> Condition:
    """Returns the gateways' condition, with the reason RequestsRetried after recent retries."""
    reports = [pod.report for pod in observed.of_pool(common.GATEWAY) if pod.report is not None]
    codes = ", ".join(sorted({code for report in reports for code in report.retried}))
    if not gateway.status or not codes:
        return gateway
    text = f"{gateway.message}; requests were dispatched again after {codes}"
    return replace(gateway, reason=conditions.REQUESTS_RETRIED, message=text)


def _any_ready(kind: str, pods: Sequence[Pod]) -> Condition:
    """Returns the condition of a pool or of the gateways, true if one pod is ready: the pool then still serves."""
    staying = [pod for pod in pods if not pod.leaving]
    ready = sum(pod.serves for pod in staying)
    if ready:
        without = _unreached([pod for pod in staying if not _is_new(pod)])
        text = f"{ready} of {len(staying)} ready" + (f"; without a gateway: {without}" if without else "")
        return Condition(kind, True, conditions.ALL_READY, text)
    if any(pod.unreached and not _is_new(pod) for pod in staying):
        return Condition(kind, False, conditions.WORKERS_UNREACHABLE, _unreached(staying))
    for pod in staying:
        if pod.refused:
            return Condition(kind, False, conditions.WORKER_REFUSED, f"{pod.name}: {pod.refused}")
    reason = conditions.STARTING if staying else conditions.NO_READY_WORKER
    if any(pod.unseen_since for pod in staying):
        reason = conditions.NODE_UNREACHABLE
    if any(pod.downloading for pod in staying):
        reason = conditions.DOWNLOADING
    if any(pod.unschedulable for pod in staying):
        reason = conditions.UNSCHEDULABLE
    return Condition(kind, False, reason, _why_none(pods, staying))


def _why_none(pods: Sequence[Pod], staying: Sequence[Pod]) -> str:
    """Returns the state of pods that are not ready, with times instead of durations: each new message costs a write."""
    unseen = sorted(pod.unseen_since for pod in staying if pod.unseen_since)
    silent = f"{len(unseen)} of {len(staying)} pods not seen since {unseen[0]}" if unseen else ""
    if known := "; ".join(text for text in (silent, _messages(staying)) if text):
        return known
    if staying:
        return f"{', '.join(pod.name for pod in staying)}: no status yet"
    leaving = ", ".join(pod.name for pod in pods)
    return f"{leaving}: leaving, and no other pod has been started yet" if pods else "no pod has been started yet"


def _is_new(pod: Pod) -> bool:
    """True if the pod became ready a moment ago, so that gateways are still connecting to it."""
    return pod.ready and pod.ready_for < reached.GRACE


def _unreached(pods: Sequence[Pod]) -> str:
    return "; ".join(f"{pod.name}: {pod.unreached}" for pod in pods if pod.unreached)


def _messages(pods: Sequence[Pod]) -> str:
    texts = ((pod.name, pod.refused or pod.blocked or pod.message or pod.unreached) for pod in pods)
    return "; ".join(f"{name}: {text}" for name, text in texts if text)


def _transport(observed: Observed) -> Condition:
    kind = conditions.KV_TRANSPORT_READY
    if not observed.service.spec.disaggregated:
        return Condition(kind, True, conditions.NOT_NEEDED, "the service has no prefill pool")
    states = {pod.name: pod.state for pod in observed.pods if pod.ready and pod.state is not None}
    if not states:
        return Condition(kind, None, conditions.UNKNOWN, "no ready worker has reported its state yet")
    without = sorted(name for name, state in states.items() if not state.transport)
    if without:
        return Condition(kind, False, conditions.NO_TRANSPORT, ", ".join(without))
    cut_off = {name: state.failed_connections for name, state in states.items()}
    cut_off = {name: failed for name, failed in cut_off.items() if failed >= FAILED_CONNECTIONS}
    if cut_off:
        texts = (f"{name}: its last {failed} connections to other workers failed" for name, failed in cut_off.items())
        return Condition(kind, False, conditions.PEERS_UNREACHABLE, "; ".join(sorted(texts)))
    fallen = sorted(f"{name}: {_carrier(state)}" for name, state in states.items() if state.transport_fallback)
    if fallen:
        return Condition(kind, True, conditions.TRANSPORT_FALLBACK, "; ".join(fallen))
    used = ", ".join(sorted({_carrier(state) for state in states.values()}))
    return Condition(kind, True, conditions.CONNECTED, used)


def _kernels(observed: Observed) -> Condition | None:
    """Returns a condition while torch's operators replace compiled kernels; else None."""
    states = ((pod.name, pod.state) for pod in observed.pods if pod.ready and pod.state is not None)
    fallen = sorted(f"{name}: {state.kernel_fallback}" for name, state in states if state.kernel_fallback)
    return Condition(conditions.KERNELS_READY, False, conditions.KERNEL_FALLBACK, "; ".join(fallen)) if fallen else None


def _carrier(state: WorkerState) -> str:
    """Returns a worker's transport for hand-offs, with the reason why it is not a better one."""
    return state.transport + (f" ({state.transport_reason})" if state.transport_reason else "")


def _upgraded(observed: Observed, revisions: Mapping[str, Revisions], upgrade: UpgradeState) -> Condition:
    kind = conditions.UPGRADED
    if upgrade is UpgradeState.WAITING:
        text = "; ".join(
            part for part in ("its pods stay as they are until it is upgraded", observed.upgrades_stopped) if part
        )
        return Condition(kind, False, conditions.AWAITING_UPGRADE, text)
    if upgrade is UpgradeState.EDITED:
        return Condition(kind, False, conditions.ROLLING_OUT, "with a change of the manifest")
    if upgrade is UpgradeState.CURRENT:
        return Condition(kind, True, conditions.UP_TO_DATE)
    why = [f"{role}: {each.failure.message}" for role, each in revisions.items() if each.failure is not None]
    if observed.missing:
        why.append(checks.text(observed.missing))
    if why:
        text = f"{'; '.join(why)}; no other service is upgraded meanwhile"
        return Condition(kind, False, conditions.UPGRADE_FAILED, text)
    return Condition(kind, False, conditions.UPGRADING)


def _progressing(
    observed: Observed,
    targets: Mapping[str, PoolTarget],
    revisions: Mapping[str, Revisions],
    plans: Mapping[str, PoolPlan],
) -> Condition:
    kind = conditions.PROGRESSING
    if observed.missing:
        return Condition(kind, False, conditions.NOT_FOUND, checks.text(observed.missing))
    if failures := {pool: each.failure for pool, each in revisions.items() if each.failure is not None}:
        return _failed(failures, revisions)
    unschedulable = [pod for pod in observed.pods if pod.unschedulable and not pod.leaving]
    waiting = [pod for made in plans.values() for pod in made.waiting]
    moving = {name: made for name, made in plans.items() if not made.settled}
    counts = ", ".join(f"{name} {made.current} of {made.target}" for name, made in moving.items())
    if waiting:
        return Condition(kind, True, conditions.CAPACITY_UNAVAILABLE, _messages(waiting))
    if moving and unschedulable:
        return Condition(kind, True, conditions.UNSCHEDULABLE, _messages(unschedulable))
    retrying = [pod for pod in observed.pods if failure.tries_again(pod) and not pod.leaving]
    if moving and retrying:
        return Condition(kind, True, conditions.RETRYING, _messages(retrying))
    if disruptions := [text for pod in observed.pods if pod.pool in moving and (text := _disruption(pod))]:
        return Condition(kind, True, conditions.DISRUPTED, "; ".join((counts, *disruptions)))
    if any(made.old for made in moving.values()):
        return Condition(kind, True, conditions.ROLLING_OUT, counts)
    if moving:
        return Condition(kind, True, conditions.SCALING, counts)
    if capped := _capped(observed, targets):
        return Condition(kind, False, conditions.CAPPED, capped)
    return Condition(kind, False, conditions.UP_TO_DATE)


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
    messages = [f"{pool}: revision {revisions[pool].desired_name}: {each.message}" for pool, each in failures.items()]
    if any(revisions[pool].rolled_back for pool in failures):
        messages.append("rolling back to the last good revision")
    elif any(revisions[pool].good is not None for pool in failures):
        messages.append("the last good revision keeps serving")
    return Condition(conditions.PROGRESSING, False, next(iter(failures.values())).reason, "; ".join(messages))
