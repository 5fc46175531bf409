"""RDMA resources of a worker's pod: devices, huge pages, shared memory, and permission to lock memory."""

from collections.abc import Mapping
from typing import Any

from legato_operator.api.spec.rdma import RDMA
from legato_operator.manifests.pods import container
from legato_operator.manifests.pods.model import Volume
from legato_protocol.settings import sizes

_SHARED_MEMORY = "shared-memory"  # the volume
_GROUP = 65532  # the images' group: without capabilities, root can only write files of its user or group


def with_rdma(pod: dict[str, Any], rdma: RDMA | None) -> dict[str, Any]:
    """Returns a pod's spec with the RDMA resources of its one container."""
    if rdma is None:
        return pod
    (worker,) = pod["containers"]
    made = {**worker, "resources": _resources(worker["resources"], rdma)}
    if rdma.memory_lock == "IPCLock":
        made["securityContext"] = _locking(worker["securityContext"])
    pod = {**pod, "containers": [made]}
    if rdma.shared_memory is None:
        return pod
    memory = {"medium": "Memory", "sizeLimit": sizes.text(rdma.shared_memory)}
    mount = {"name": _SHARED_MEMORY, "mountPath": "/dev/shm"}
    return container.with_volumes(pod, [Volume({"name": _SHARED_MEMORY, "emptyDir": memory}, mount)])


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
