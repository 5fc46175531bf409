"""Conditions of a service: their types, every reason, and updates of a list of conditions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

READY = "Ready"
PREFILL_READY = "PrefillReady"
DECODE_READY = "DecodeReady"
GATEWAY_READY = "GatewayReady"
KV_TRANSPORT_READY = "KVTransportReady"
PROGRESSING = "Progressing"
ROUTE_READY = "RouteReady"
SCALING_ACTIVE = "ScalingActive"
UPGRADED = "Upgraded"
ADAPTERS_READY = "AdaptersReady"
KERNELS_READY = "KernelsReady"
KV_TIERS_READY = "KVTiersReady"

ACCEPTED = "Accepted"
ADAPTERS_PENDING = "AdaptersPending"
ADAPTER_REFUSED = "AdapterRefused"
ADVISORY = "Advisory"
ALL_READY = "AllReady"
API_REFUSED = "APIRefused"
AUTOSCALING = "Autoscaling"
CANARY_COMPARING = "CanaryComparing"
CANARY_FAILED = "CanaryFailed"
CANARY_INCONCLUSIVE = "CanaryInconclusive"
CANARY_PROMOTING = "CanaryPromoting"
CANARY_STARTING = "CanaryStarting"
CAPACITY_UNAVAILABLE = "CapacityUnavailable"
CAPPED = "Capped"
CONNECTED = "Connected"
DEGRADED = "Degraded"
DELETING = "Deleting"
DISRUPTED = "Disrupted"
DOWNLOADING = "Downloading"
HOST_CONFLICT = "HostConflict"
INVALID = "Invalid"
KERNEL_FALLBACK = "KernelFallback"
KV_TIER_ERRORS = "KVTierErrors"
METRICS_STALE = "MetricsStale"
NOT_AVAILABLE = "NotAvailable"
NOT_FOUND = "NotFound"
NODE_UNREACHABLE = "NodeUnreachable"
NOT_NEEDED = "NotNeeded"
NO_READY_WORKER = "NoReadyWorker"
NO_TRANSPORT = "NoTransport"
OPERATOR_FAULT = "OperatorFault"
PAUSED = "Paused"
PEERS_UNREACHABLE = "PeersUnreachable"
POOLS_DIFFER = "PoolsDiffer"
PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
REQUESTS_RETRIED = "RequestsRetried"
RETRYING = "Retrying"
ROLLING_OUT = "RollingOut"
ROLLOUT_FAILED = "RolloutFailed"
ROUTE_API_MISSING = "RouteAPIMissing"
ROUTE_PENDING = "RoutePending"
ROUTE_REFUSED = "RouteRefused"
SCALED_TO_ZERO = "ScaledToZero"
SCALING = "Scaling"
STARTING = "Starting"
TRANSPORT_FALLBACK = "TransportFallback"
UNKNOWN = "Unknown"
UNSCHEDULABLE = "Unschedulable"
UPGRADE_FAILED = "UpgradeFailed"
UPGRADING = "Upgrading"
UP_TO_DATE = "UpToDate"
AWAITING_UPGRADE = "WaitingForTurn"
WORKERS_UNREACHABLE = "WorkersUnreachable"
WORKER_REFUSED = "WorkerRefused"

REASONS = {
    ACCEPTED: "requests from outside the cluster reach the gateways, as the routes' controllers report",
    ADAPTERS_PENDING: "pods have not read the changed list of adapters yet, which takes up to two minutes",
    ADAPTER_REFUSED: "a worker cannot open an adapter; the message says where and why; everything else keeps working",
    ADVISORY: "`scaling.mode` is `Advisory`: the autoscaler reports its decisions and changes nothing",
    ALL_READY: "all components needed to serve requests are ready",
    API_REFUSED: "the API server rejected a write of the operator: a quota, a policy, a webhook or missing permissions",
    AUTOSCALING: "the autoscaler sets the pools' replicas from measured load",
    CANARY_COMPARING: "new workers serve a share of requests and are compared with old ones",
    CANARY_FAILED: "the new revision is slower or fails more than the old one, and was rolled back",
    CANARY_INCONCLUSIVE: "a canary has no decision within `rollout.progressDeadline`; the message says why",
    CANARY_PROMOTING: "the new revision was no worse than the old one, and replaces it",
    CANARY_STARTING: "the first workers of the new revision start; then they get a share of requests",
    CAPACITY_UNAVAILABLE: "the cluster has no room for another worker like the running ones; starts are paused",
    CAPPED: "the desired number of workers is outside the scaling bounds, the ratio of the pools or the GPU budget",
    CONNECTED: "workers can hand off KV over the transport named in the message",
    DEGRADED: "no prefill worker is ready: decode workers prefill, so requests are served but may wait longer",
    DELETING: "the service is being deleted",
    DISRUPTED: "a process crashed, a pod was evicted, or its node stopped reporting; each is restarted or replaced",
    DOWNLOADING: "a pod downloads a model or adapter: see the logs of `model`, `draft-model` or `adapter-...`",
    HOST_CONFLICT: "an older service has a route for the same host on the same Gateway or class; the message names it",
    INVALID: "the newest manifest is invalid; the last usable one stays in use",
    KERNEL_FALLBACK: "slower operators replace compiled kernels, or weights have no kernel; the message says why",
    KV_TIER_ERRORS: "KV files could not be written or used in the last 10 minutes, so prompts are computed instead",
    METRICS_STALE: "a worker or gateway has not reported its load for 30 s, so no pool shrinks; the message names it",
    NODE_UNREACHABLE: "nodes no longer report their pods, which may still run; the message says since when",
    NOT_AVAILABLE: "the newest manifest uses a feature that is not available yet or not on this platform",
    NOT_FOUND: "a PersistentVolumeClaim, ConfigMap or Secret that the manifest names is missing; running workers stay",
    NOT_NEEDED: "the service has no such pool, or no hand-offs",
    NO_READY_WORKER: "no worker of this pool is ready",
    NO_TRANSPORT: "a worker has no transport for hand-offs",
    OPERATOR_FAULT: "the operator failed to reconcile this object and will retry; see its log",
    PAUSED: "the autoscaler is paused until the time in the message, by `legato scale` or an annotation",
    PEERS_UNREACHABLE: "a worker's last connections to other workers failed, so it receives no KV; its log says why",
    POOLS_DIFFER: "no worker can exchange KV with the other pool, whose formats differ; the message compares two",
    PROGRESS_DEADLINE_EXCEEDED: "a worker of the latest revision was not ready within `rollout.progressDeadline`",
    REQUESTS_RETRIED: "requests were dispatched again after failures in the last minute; the message has the codes",
    RETRYING: "an image cannot be pulled, or a volume cannot be mounted; the kubelet tries again for 5 minutes",
    ROLLING_OUT: "workers of an older revision are being replaced",
    ROLLOUT_FAILED: "a worker of the latest revision cannot start; workers of the last good revision keep serving",
    ROUTE_API_MISSING: "the cluster does not serve HTTPRoutes: the CRDs of the Gateway API are missing",
    ROUTE_PENDING: "no Gateway or ingress controller has accepted the route yet",
    ROUTE_REFUSED: "a Gateway does not accept the route, or cannot find the Service; the message says why",
    SCALED_TO_ZERO: "no worker is desired; gateways queue requests until the autoscaler has started one",
    SCALING: "workers are being added or drained",
    STARTING: "pods are still starting",
    TRANSPORT_FALLBACK: "a worker hands off by TCP instead of RDMA, or not directly from memory; the message says why",
    UNKNOWN: "no ready worker has reported its state yet",
    UNSCHEDULABLE: "no node can run a pod: its resource requests, affinity or volumes cannot be satisfied",
    UPGRADE_FAILED: "pods of the operator's version cannot start; no other service is upgraded until they do",
    UPGRADING: "the service's pods are being replaced by pods of the operator's version",
    UP_TO_DATE: "the desired number of workers is ready, all of the latest revision",
    AWAITING_UPGRADE: "the service keeps the images and settings of another operator version until it is upgraded",
    WORKERS_UNREACHABLE: "no gateway has a connection to a worker that is ready; the message says why, by gateway",
    WORKER_REFUSED: "a process ended with a permanent error (exit code 2)",
}

# These raise no warning with status False: they are transient or requested.
CALM = frozenset(
    {ADAPTERS_PENDING, ADVISORY, DELETING, DOWNLOADING, NOT_NEEDED, NO_READY_WORKER}
    | {AWAITING_UPGRADE, PAUSED, ROLLING_OUT, ROUTE_PENDING, SCALING, STARTING, UNKNOWN, UPGRADING, UP_TO_DATE}
)

# These raise a warning with any status: somebody has to act.
ALARMING = frozenset(
    {CAPACITY_UNAVAILABLE, DEGRADED, DISRUPTED, REQUESTS_RETRIED, RETRYING, TRANSPORT_FALLBACK, UNSCHEDULABLE}
)


@dataclass(frozen=True)
class Condition:
    type: str
    status: bool | None  # None is Unknown
    reason: str
    message: str = ""


def update(
    known: Sequence[Mapping[str, Any]], news: Sequence[Condition], generation: int, now: str
) -> list[dict[str, Any]]:
    """Returns the new list; a transition time changes only with its status."""
    before = {condition["type"]: condition for condition in known}
    return [_entry(condition, before.get(condition.type, {}), generation, now) for condition in news]


def _entry(condition: Condition, before: Mapping[str, Any], generation: int, now: str) -> dict[str, Any]:
    status = "Unknown" if condition.status is None else str(condition.status)
    return {
        "type": condition.type,
        "status": status,
        "reason": condition.reason,
        "message": condition.message,
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if before.get("status") == status else now,
    }


def known(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the complete conditions of a status; entries by an older operator or a person may lack fields."""
    needed = {"type", "status", "reason", "message", "lastTransitionTime"}
    return [condition for condition in status.get("conditions") or () if needed <= condition.keys()]


def find(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Returns the condition of a type, or an empty mapping."""
    match: Mapping[str, Any] = next((c for c in known(status) if c["type"] == kind), {})
    return match
