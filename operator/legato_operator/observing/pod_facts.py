"""Converts a pod of the API to the facts that plans use. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from legato_operator.api import roles
from legato_operator.cluster import Object, is_leaving, labels_of, seconds_of, uid_of
from legato_operator.manifests import common
from legato_operator.manifests.pods import adapters, devices, model
from legato_operator.manifests.pods.container import INTERNAL_TLS
from legato_operator.observing.observed import Pod
from legato_protocol import names

REFUSED_EXIT_CODE = 2
LOST_AFTER = 30.0  # seconds beyond its grace period: clocks differ, and a busy kubelet is not a lost node
_POOLS = (*roles.BOTH, common.GATEWAY)
_DOWNLOADS = {model.DOWNLOAD: "its model", model.DRAFT_DOWNLOAD: "its draft model"}
_OURS = ("worker", "gateway", *_DOWNLOADS)
_BEGINNING = ("ContainerCreating", "PodInitializing")
_BLOCKED = {  # reasons why a kubelet cannot create a container
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError",
}  # fmt: skip
_PLAIN_ENDS = ("Error", "Completed")  # reasons that add nothing to the exit code, unlike OOMKilled
_DOOMED = "InvalidImageName"  # the only reason that no registry, node or Secret can fix


def belongs(item: Object) -> bool:
    """True if the pod's labels name one of the roles; `ownership` decides which service it belongs to."""
    return labels_of(item).get(names.LABEL_ROLE) in _POOLS


def read(item: Object, now: float) -> Pod:
    """Returns the facts from the pod's object, without the report of its process."""
    labels, status = labels_of(item), item.get("status", {})
    pool = labels[names.LABEL_ROLE]
    ready = _condition(status, "Ready").get("status") == "True"
    return Pod(
        name=item["metadata"]["name"],
        uid=uid_of(item),
        pool=pool,
        revision=labels.get(names.LABEL_POD_REVISION, ""),
        created=item["metadata"]["creationTimestamp"],
        ready=ready,
        leaving=is_leaving(item),
        message="" if ready else _message(status),
        refused=_refused(status),
        blocked=_blocked(status),
        blocked_for=now - _blocked_since(item) if _blocked(status) else 0.0,
        doomed=_blocked(status).startswith(_DOOMED),
        was_ready=not ready and _was_ready(status),
        unstarted=_is_unstarted(status),
        downloading=_download(status) != "",
        node=item["spec"].get("nodeName", ""),
        disrupted=_disrupted(status),
        unseen_since=_unseen_since(status),
        restarts=_restarts(status),
        ended=_ended(status),
        waiting=0.0 if ready else now - seconds_of(_not_ready_since(item)),
        ready_for=now - seconds_of(_not_ready_since(item)) if ready else 0.0,
        start_seconds=_start_seconds(item) if ready and not _restarts(status) else None,
        address=_control_address(item),
        tls_secret=_tls_secret(item),
        draining_since=_draining_since(item),
        age=now - seconds_of(item["metadata"]["creationTimestamp"]),
        failed=status.get("phase") in ("Failed", "Succeeded"),
        failures=_failures(item),
        unschedulable=_condition(status, "PodScheduled").get("reason") == "Unschedulable",
        devices=devices.requested(item["spec"]),
        lost=_is_lost(item, now),
    )


def _message(status: Mapping[str, Any]) -> str:
    """Returns why the pod is not ready, from a waiting container or else from the pod's conditions."""
    for container in _containers(status):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason", _BEGINNING[0]) not in _BEGINNING:
            return _reason_and_message(waiting)
    if download := _download(status):
        return download
    for kind in ("PodScheduled", "Ready"):
        condition = _condition(status, kind)
        if condition.get("status") == "False":
            return str(condition.get("message", ""))
    return str(status.get("message", ""))


def _disrupted(status: Mapping[str, Any]) -> str:
    """Returns why the pod was disrupted, as the API server or a kubelet reports it, or an empty text."""
    disruption = _condition(status, "DisruptionTarget")
    if disruption.get("status") == "True":
        return _reason_and_message(disruption)
    return _reason_and_message(status) if status.get("phase") == "Failed" else ""


def _unseen_since(status: Mapping[str, Any]) -> str:
    """Returns the time since which the pod's node is silent: the node controller then only sets `Ready` to False."""
    ready, containers = _condition(status, "Ready"), _condition(status, "ContainersReady")
    silent = ready.get("status") == "False" and containers.get("status") == "True" and not ready.get("message")
    return str(ready.get("lastTransitionTime", "")) if silent else ""


def _reason_and_message(state: Mapping[str, Any]) -> str:
    return ": ".join(text for text in (state.get("reason", ""), state.get("message", "")) if text)


def _download(status: Mapping[str, Any]) -> str:
    """Returns the description of a running download with its start, or an empty text."""
    for container in status.get("initContainerStatuses", ()):
        name = container.get("name", "")
        what = "an adapter" if _is_adapter(name) else _DOWNLOADS.get(name)
        if what and "running" in container.get("state", {}):
            since = container["state"]["running"].get("startedAt") or "now"
            return f"downloading {what} since {since}"
    return ""


def _is_adapter(container: str) -> bool:
    return adapters.DOWNLOAD.fullmatch(container) is not None


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    match: Mapping[str, Any] = next((c for c in status.get("conditions", ()) if c["type"] == kind), {})
    return match


def _containers(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Returns the operator's own containers in the order in which they start."""
    named = ((container.get("name", ""), container) for container in _all_containers(status))
    return (container for name, container in named if name in _OURS or _is_adapter(name))


def _all_containers(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for kind in ("initContainerStatuses", "containerStatuses"):
        yield from status.get(kind, ())


def _refused(status: Mapping[str, Any]) -> str:
    """Returns the last output of a process that ended with the exit code of a permanent error."""
    for container in _containers(status):
        for state in ("state", "lastState"):
            ended = container.get(state, {}).get("terminated", {})
            if ended.get("exitCode") == REFUSED_EXIT_CODE:
                return _last_line(ended) or "ended with a permanent error"
    return ""


def _blocked(status: Mapping[str, Any]) -> str:
    """Returns why a container cannot be created; any counts, because a blocked sidecar keeps the pod unready."""
    for container in _all_containers(status):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") in _BLOCKED:
            return _reason_and_message(waiting)
    return ""


def _blocked_since(item: Object) -> float:
    """Returns the earliest possible time of the blockage: after its last readiness and its containers' last ends."""
    ended = (
        container.get(state, {}).get("terminated", {}).get("finishedAt")
        for container in _all_containers(item.get("status", {}))
        for state in ("state", "lastState")
    )
    return max(seconds_of(time) for time in (_not_ready_since(item), *ended) if time)


def _was_ready(status: Mapping[str, Any]) -> bool:
    """True if the pod's readiness changed after all its containers had started."""
    since = _condition(status, "Ready").get("lastTransitionTime")
    running = [container.get("state", {}).get("running", {}) for container in status.get("containerStatuses", ())]
    started = [seconds_of(state["startedAt"]) for state in running if "startedAt" in state]
    return since is not None and 0 < len(started) == len(running) and seconds_of(since) > max(started)


def _is_unstarted(status: Mapping[str, Any]) -> bool:
    """True from scheduling until the first container has started or cannot be created."""
    states = [(each.get("state", {}).get("waiting", {}), each.get("lastState")) for each in _all_containers(status)]
    begins = all(waiting.get("reason") in _BEGINNING and not last for waiting, last in states)
    return _condition(status, "PodScheduled").get("status") == "True" and status.get("phase") == "Pending" and begins


def _ended(status: Mapping[str, Any]) -> str:
    """Returns the exit code, reason and last line of the most restarted container."""
    containers = sorted(_all_containers(status), key=lambda c: int(c.get("restartCount", 0)), reverse=True)
    for container in containers[:1]:
        for state in ("state", "lastState"):
            if ended := container.get(state, {}).get("terminated", {}):
                reason = f" ({ended['reason']})" if ended.get("reason", "Error") not in _PLAIN_ENDS else ""
                code = f"{container['name']} exited with code {ended.get('exitCode')}{reason}"
                return ": ".join(text for text in (code, _last_line(ended)) if text)
    return ""


def _last_line(ended: Mapping[str, Any]) -> str:
    """Returns the last line of a termination message, of which a kubelet keeps up to eighty."""
    return next(reversed(ended.get("message", "").strip().splitlines()), "")


def _not_ready_since(item: Object) -> str:
    """Returns the time of the last change of readiness, or else of the creation."""
    since = _condition(item.get("status", {}), "Ready").get("lastTransitionTime")
    return str(since or item["metadata"]["creationTimestamp"])


def _restarts(status: Mapping[str, Any]) -> int:
    return max((int(c.get("restartCount", 0)) for c in _all_containers(status)), default=0)


def _start_seconds(item: Object) -> float:
    """Returns the seconds from creation to readiness, for a ready pod without restarts."""
    return seconds_of(_not_ready_since(item)) - seconds_of(item["metadata"]["creationTimestamp"])


def _control_address(item: Object) -> str:
    """Returns the address of the control port, announced by the process or fixed in the pod's spec."""
    status = item.get("status", {})
    announced = status.get("ports", {}).get(names.CONTROL)
    port = announced or _container_port(item, names.CONTROL_TLS) or _container_port(item, names.CONTROL)
    host = status.get("podIP", "")
    if not (port and host):
        return ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tls_secret(item: Object) -> str:
    """Returns the Secret of the pod's certificate if its control port has TLS, or an empty text."""
    if _container_port(item, names.CONTROL_TLS) is None:
        return ""
    volumes = (volume for volume in item["spec"].get("volumes", ()) if volume.get("name") == INTERNAL_TLS)
    return next((str(volume.get("secret", {}).get("secretName", "")) for volume in volumes), "")


def _container_port(item: Object, name: str) -> int | None:
    ports = (port for container in item["spec"]["containers"] for port in container.get("ports", ()))
    return next((int(port["containerPort"]) for port in ports if port.get("name") == name), None)


def _draining_since(item: Object) -> float | None:
    """Returns the time when draining started; an invalid annotation, written by hand, counts as long ago."""
    since = item["metadata"].get("annotations", {}).get(common.ANNOTATION_DRAINING)
    if since is None:
        return None
    try:
        return float(since)
    except ValueError:
        return 0.0


def _failures(item: Object) -> int:
    """Returns the annotated number of failures in a row; an invalid annotation counts as 0."""
    text = item["metadata"].get("annotations", {}).get(common.ANNOTATION_FAILURES, "")
    return int(text) if re.fullmatch(r"[0-9]{1,4}", text) else 0


def _is_lost(item: Object, now: float) -> bool:
    """True if the pod has outlived its deletion timestamp, which is the end of its grace period."""
    metadata = item["metadata"]
    if not is_leaving(item) or "deletionGracePeriodSeconds" not in metadata:
        return False
    return now > seconds_of(metadata["deletionTimestamp"]) + LOST_AFTER
