"""What a worker's pod gets for RDMA: devices, huge pages, shared memory, and the right to lock memory."""

from collections.abc import Mapping
from typing import Any

from legato_operator.api.rdma_spec import RDMA
from legato_operator.manifests import container
from legato_operator.manifests.model import Volume
from legato_protocol import sizes

_SHARED_MEMORY = "shared-memory"  # the volume
_GROUP = 65532  # the images' group: without capabilities, root may write only what its user or group may


def added(pod: dict[str, Any], rdma: RDMA | None) -> dict[str, Any]:
    """The spec of a pod around one container with all that, for this container."""
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
    """Requests and limits must be equal for both: neither devices nor huge pages can be overcommitted."""
    more = {rdma.resource: str(rdma.count)}
    if rdma.huge_pages:
        more[rdma.huge_pages.resource] = sizes.text(rdma.huge_pages.memory)
    return {kind: {**given.get(kind, {}), **more} for kind in ("requests", "limits")}


def _locking(given: Mapping[str, Any]) -> dict[str, Any]:
    """Root with this capability and no other one.

    Kubernetes gives added capabilities to nobody but root: the kernel clears those of another user when a program
    starts, unless they are ambient, and of these Kubernetes knows nothing.
    """
    capabilities = {**given["capabilities"], "add": ["IPC_LOCK"]}
    return {**given, "runAsNonRoot": False, "runAsUser": 0, "runAsGroup": _GROUP, "capabilities": capabilities}
