"""What the pods of workers need for RDMA, as a manifest asks for it."""

from typing import Annotated, Literal

from pydantic import Field

from legato_operator.api import quantities
from legato_operator.api.manifest_part import ManifestPart
from legato_operator.api.scalars import Memory


class HugePages(ManifestPart):
    page_size: Literal["2Mi", "1Gi"] = "2Mi"
    """Size of one page, of which the nodes have set some aside."""
    memory: Memory
    """All pages of one worker together."""

    @property
    def resource(self) -> str:
        """Kubernetes' name of them."""
        return f"hugepages-{self.page_size}"


class RDMA(ManifestPart):
    resource: Annotated[str, Field(pattern=f"^{quantities.DEVICE}$", max_length=253)]
    """Resource name of the devices, as the nodes' device plugin offers it: rdma/ib, for example."""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of them that each worker requests."""
    memory_lock: Literal["IPCLock", "NodeLimit"] = "IPCLock"
    """What lets a worker register its memory: the capability IPC_LOCK, which works for root alone and needs a namespace
    at the level privileged, or the limit of locked memory that the node's container runtime gives to containers."""
    huge_pages: HugePages | None = None
    """Huge pages of each worker; none if not given."""
    shared_memory: Memory | None = None
    """Size of /dev/shm, as a part of the worker's memory; the container runtime's default, 64Mi, if not given."""
