"""RDMA resources of a worker's pod: devices, huge pages, and permission to lock memory."""

from collections.abc import Mapping
from typing import Any

from legato_operator.api.spec.rdma import RDMA
from legato_protocol.settings import sizes

_GROUP = 65532  # the images' group: without capabilities, root can only write files of its user or group


def with_rdma(pod: dict[str, Any], rdma: RDMA | None) -> dict[str, Any]:
    """Returns a pod's spec with the RDMA resources of its one container."""
    if rdma is None:
        return pod
    (worker,) = pod["containers"]
    made = {**worker, "resources": _resources(worker["resources"], rdma)}
    if rdma.memory_lock == "IPCLock":
        made["securityContext"] = _locking(worker["securityContext"])
    return {**pod, "containers": [made]}


def _resources(given: Mapping[str, Any], rdma: RDMA) -> dict[str, Any]:
    """Returns equal requests and limits, because neither devices nor huge pages can be overcommitted."""
    more = {rdma.resource: str(rdma.count)}
    if rdma.huge_pages:
        more[rdma.huge_pages.resource] = sizes.text(rdma.huge_pages.memory)
    return {kind: {**given.get(kind, {}), **more} for kind in ("requests", "limits")}


def _locking(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the security context of root with only this capability.

    Added capabilities only work for root: the kernel clears another user's when a program starts, unless they are
    ambient, which Kubernetes does not support.
    """
    capabilities = {**given["capabilities"], "add": ["IPC_LOCK"]}
    return {**given, "runAsNonRoot": False, "runAsUser": 0, "runAsGroup": _GROUP, "capabilities": capabilities}
