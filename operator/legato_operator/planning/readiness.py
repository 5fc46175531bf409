"""Conditions Ready, of each part, of the KV transport, of kernels and of KV tiers, from a service's pods. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from legato_operator.api import conditions, roles
from legato_operator.api.conditions import Condition
from legato_operator.manifests import common
from legato_operator.observing import reached
from legato_operator.observing.observed import KVFormat, Observed, Pod, WorkerState
from legato_operator.planning.pools.pool_plan import PoolPlan
from legato_operator.planning.rollout.revisions import Revisions

_ALIKE = (
    "Both pools need equal model files, images and kinds of processors or GPUs, and values of parallelism.tensor with "
    "equal formats, which `legato doctor -f` lists"
)
FAILED_CONNECTIONS = 3  # in a row; one or two may have been to a worker that died


def parts(observed: Observed, pools: Mapping[str, PoolPlan]) -> tuple[Condition, Condition, Condition]:
    """Returns the conditions of the prefill pool, the decode pool and the gateways."""
    prefill = _pool_ready(observed, conditions.PREFILL_READY, roles.PREFILL, pools)
    decode = _pool_ready(observed, conditions.DECODE_READY, roles.DECODE, pools)
    return prefill, decode, _with_retries(_gateway(observed), observed)


def ready(
    observed: Observed,
    revisions: Mapping[str, Revisions],
    parts: tuple[Condition, Condition, Condition],
    transport: Condition,
    progressing: Condition,
) -> Condition:
    """Returns the condition Ready of a service, from its other conditions."""
    prefill, decode, gateway = parts
    degraded = not prefill.status and not _is_first_start(revisions, prefill) and _prefills_locally(observed)
    prefill_optional = degraded or roles.bounds(observed.service.spec, roles.PREFILL).min == 0
    needed = (decode, gateway) if prefill_optional else parts
    waiting = next((part for part in needed if not part.status), None)
    if waiting is not None and observed.missing:
        return Condition(conditions.READY, False, progressing.reason, progressing.message)
    if waiting is decode and _wakes_from_zero(observed, decode, gateway, progressing):
        return Condition(conditions.READY, True, conditions.SCALED_TO_ZERO, f"first worker starting: {decode.message}")
    if waiting is not None:
        return Condition(conditions.READY, False, waiting.reason, f"{waiting.type}: {waiting.message}")
    if decode.reason == conditions.SCALED_TO_ZERO:
        return Condition(conditions.READY, True, conditions.SCALED_TO_ZERO, decode.message)
    if transport.status is False and observed.service.spec.transfer.required:
        return Condition(conditions.READY, False, transport.reason, transport.message)
    if degraded:
        text = f"decode workers prefill: {prefill.type}: {prefill.message}"
        return Condition(conditions.READY, True, conditions.DEGRADED, text)
    return Condition(conditions.READY, True, conditions.ALL_READY)


def _prefills_locally(observed: Observed) -> bool:
    """True if decode workers prefill while no prefill worker is ready, although the spec requires one."""
    spec = observed.service.spec
    return spec.routing.when_prefill_unavailable == "Local" and roles.bounds(spec, roles.PREFILL).min > 0


def _is_first_start(revisions: Mapping[str, Revisions], prefill: Condition) -> bool:
    """True while a new service's prefill workers start normally: it is not ready before they are."""
    ran = any(each.good is not None or each.failure is not None for each in revisions.values())
    starts = prefill.reason in (conditions.STARTING, conditions.DOWNLOADING, conditions.NO_READY_WORKER)
    return starts and not ran


def _pool_ready(observed: Observed, kind: str, pool: str, pools: Mapping[str, PoolPlan]) -> Condition:
    if pool not in pools:
        return Condition(kind, True, conditions.NOT_NEEDED, "decode workers prefill")
    if not pools[pool].target:
        return Condition(kind, True, conditions.SCALED_TO_ZERO, "no worker is desired")
    return any_ready(kind, [pod for pod in observed.of_pool(pool) if pod.draining_since is None])


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
        return any_ready(conditions.GATEWAY_READY, pods)
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


def any_ready(kind: str, pods: Sequence[Pod]) -> Condition:
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
    if known := "; ".join(text for text in (silent, messages(staying)) if text):
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


def messages(pods: Sequence[Pod]) -> str:
    """Returns the names and messages of pods that have one."""
    texts = ((pod.name, pod.refused or pod.blocked or pod.message or pod.unreached) for pod in pods)
    return "; ".join(f"{name}: {text}" for name, text in texts if text)


def transport(observed: Observed) -> Condition:
    """Returns the condition of KV hand-offs, from the transports and formats that ready workers report."""
    kind = conditions.KV_TRANSPORT_READY
    if not observed.service.spec.disaggregated:
        return Condition(kind, True, conditions.NOT_NEEDED, "the service has no prefill pool")
    states = dict(_states(observed))
    if not states:
        return Condition(kind, None, conditions.UNKNOWN, "no ready worker has reported its state yet")
    without = sorted(name for name, state in states.items() if not state.transport)
    if without:
        return Condition(kind, False, conditions.NO_TRANSPORT, ", ".join(without))
    if difference := _difference(observed):
        return Condition(kind, False, conditions.POOLS_DIFFER, f"{difference}. {_ALIKE}")
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


def _difference(observed: Observed) -> str:
    """Returns what differs between two workers, if no worker can exchange KV with the other pool; else nothing."""
    prefill, decode = (_formats(observed.of_pool(role)) for role in roles.BOTH)
    if not prefill or not decode or _revisions(prefill) & _revisions(decode):
        return ""
    (name, own), (peer, other) = (next(iter(pool.items())) for pool in (prefill, decode))
    pairs = ((part, getattr(own, part), getattr(other, part)) for part in ("weights", "layout", "formats"))
    parts = [f"{part} {one!r} and {two!r}" for part, one, two in pairs if one != two]
    differ = ", ".join(parts) or "their engines compute other values"
    return f"the pools cannot exchange KV, for example {name} and {peer}: {differ}"


def _formats(pods: Sequence[Pod]) -> dict[str, KVFormat]:
    """Returns the formats of workers, also of one that restarts; none if the format of a ready one, which may be
    another's partner, is unknown."""
    staying = [pod for pod in pods if not pod.on_its_way_out]
    states = ((pod.name, pod.recent_state) for pod in staying)
    known = {name: state.kv for name, state in states if state is not None and state.kv is not None}
    return known if all(pod.name in known for pod in staying if pod.ready) else {}


def _revisions(pool: Mapping[str, KVFormat]) -> set[str]:
    return {kv.revision for kv in pool.values()}


def kernels(observed: Observed) -> Condition | None:
    """Returns a condition while slower operators replace compiled kernels; else None."""
    fallen = _by_worker(observed, lambda state: state.kernel_fallback)
    return Condition(conditions.KERNELS_READY, False, conditions.KERNEL_FALLBACK, fallen) if fallen else None


def kv_tiers(observed: Observed) -> Condition | None:
    """Returns a condition while workers report recent errors of their KV tiers; else None."""
    problems = _by_worker(observed, lambda state: state.tier_problem)
    return Condition(conditions.KV_TIERS_READY, False, conditions.KV_TIER_ERRORS, problems) if problems else None


def _by_worker(observed: Observed, text_of: Callable[[WorkerState], str]) -> str:
    """Returns the texts of ready workers that have one, with their names."""
    return "; ".join(sorted(f"{name}: {text}" for name, state in _states(observed) if (text := text_of(state))))


def _states(observed: Observed) -> Iterator[tuple[str, WorkerState]]:
    """Yields names and recent states of ready workers that have one."""
    states = ((pod.name, pod.recent_state) for pod in observed.pods if pod.ready)
    return ((name, state) for name, state in states if state is not None)


def _carrier(state: WorkerState) -> str:
    """Returns a worker's transport for hand-offs, with the reason why it is not a better one."""
    return state.transport + (f" ({state.transport_reason})" if state.transport_reason else "")
