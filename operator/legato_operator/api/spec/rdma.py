"""`spec.transfer.rdma`: the resources that worker pods request for RDMA."""

from typing import Annotated, Literal

from pydantic import Field

from legato_operator.api import quantities
from legato_operator.api.spec.manifest_part import ManifestPart
from legato_operator.api.spec.scalars import Memory


class HugePages(ManifestPart):
    page_size: Literal["2Mi", "1Gi"] = "2Mi"
    """Size of one page; the nodes must have reserved such pages."""
    memory: Memory
    """Total size of one worker's pages."""

    @property
    def resource(self) -> str:
        """Kubernetes' resource name of the pages."""
        return f"hugepages-{self.page_size}"


class RDMA(ManifestPart):
    resource: Annotated[str, Field(pattern=f"^{quantities.DEVICE}$", max_length=253)]
    """Resource name of the devices, as the nodes' device plugin offers it: rdma/ib, for example."""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of devices that each worker requests."""
    memory_lock: Literal["IPCLock", "NodeLimit"] = "IPCLock"
    """Permission by which a worker registers its memory: the capability IPC_LOCK, which works only for root and needs a
    namespace of the level privileged, or the node's limit of locked memory for containers."""
    huge_pages: HugePages | None = None
    """Huge pages of each worker; none if not given."""
    shared_memory: Memory | None = None
    """Size of /dev/shm, as a part of the worker's memory; the container runtime's default, 64Mi, if not given."""
