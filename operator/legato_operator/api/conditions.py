"""A service's conditions: their types, every reason they can have, and how a list of them is updated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

READY = "Ready"
PREFILL_READY = "PrefillReady"
DECODE_READY = "DecodeReady"
GATEWAY_READY = "GatewayReady"
KV_TRANSPORT_READY = "KVTransportReady"
PROGRESSING = "Progressing"

ALL_READY = "AllReady"
API_REFUSED = "APIRefused"
AS_WISHED = "AsWished"
CAPPED = "Capped"
CONNECTED = "Connected"
DELETING = "Deleting"
DOWNLOADING = "Downloading"
INVALID = "Invalid"
NOT_AVAILABLE = "NotAvailable"
NOT_FOUND = "NotFound"
NOT_NEEDED = "NotNeeded"
NO_READY_WORKER = "NoReadyWorker"
NO_TRANSPORT = "NoTransport"
OPERATOR_FAULT = "OperatorFault"
PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
ROLLING_OUT = "RollingOut"
ROLLOUT_FAILED = "RolloutFailed"
SCALING = "Scaling"
STARTING = "Starting"
UNKNOWN = "Unknown"
UNSCHEDULABLE = "Unschedulable"
WORKER_REFUSED = "WorkerRefused"

REASONS = {
    ALL_READY: "everything that is needed to serve is ready",
    API_REFUSED: "the API server does not allow what the operator has to write: a quota, a policy or missing rights",
    AS_WISHED: "as many workers as wished for, all of the newest revision",
    CAPPED: "fewer or more workers were wished for than the bounds or the GPU budget allow",
    CONNECTED: "workers can hand KV over by the transport named",
    DELETING: "the service is being deleted",
    DOWNLOADING: "a pod's model is being downloaded; the log of its container `model` tells how far it is",
    INVALID: "the manifest cannot be accepted",
    NOT_AVAILABLE: "the manifest asks for something that is not available yet or not here",
    NOT_FOUND: "a claim or a Secret that the manifest names is not there; what serves is left as it is",
    NOT_NEEDED: "there is no such pool, or nothing to hand over",
    NO_READY_WORKER: "no worker of this pool is ready",
    NO_TRANSPORT: "a worker has no transport for hand-offs",
    OPERATOR_FAULT: "the operator cannot work on this object, and tries again; its log says more",
    PROGRESS_DEADLINE_EXCEEDED: "a worker of the newest revision was not ready within `rollout.progressDeadline`",
    ROLLING_OUT: "workers of an older revision are being replaced",
    ROLLOUT_FAILED: "a worker of the newest revision cannot come up; those of the last good one serve on",
    SCALING: "workers are being added or drained",
    STARTING: "not everything has started yet",
    UNKNOWN: "no ready worker has told yet",
    UNSCHEDULABLE: "no node can take a pod: it asks for a resource, a place or a volume that none has",
    WORKER_REFUSED: "a process ended with a permanent error (exit code 2)",
}

# With status False these are no cause for a warning: they pass by themselves, or are what was asked for.
CALM = frozenset(
    {AS_WISHED, DELETING, DOWNLOADING, NOT_NEEDED, NO_READY_WORKER, ROLLING_OUT, SCALING, STARTING, UNKNOWN}
)

# With any status these are: somebody has to do something.
ALARMING = frozenset({UNSCHEDULABLE})


@dataclass(frozen=True)
class Condition:
    type: str
    status: bool | None  # None is Unknown
    reason: str
    message: str = ""


def update(
    known: Sequence[Mapping[str, Any]], news: Sequence[Condition], generation: int, now: str
) -> list[dict[str, Any]]:
    """The new list: a transition time changes only where the status does."""
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
    """The conditions that a status holds. What lacks a field, by an older operator or somebody's hand, is none."""
    needed = {"type", "status", "reason", "message", "lastTransitionTime"}
    return [condition for condition in status.get("conditions") or () if needed <= condition.keys()]


def find(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """A condition out of a status; empty when it is not there yet."""
    found: Mapping[str, Any] = next((c for c in known(status) if c["type"] == kind), {})
    return found
