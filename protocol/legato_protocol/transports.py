"""What workers call that which carries their hand-offs, and between which of them it can go."""

TCP = "ucx:tcp"
SHARED_MEMORY = "ucx:shm+tcp"
RDMA = "ucx:rdma"
GPUDIRECT = "ucx:rdma+cuda"  # straight from and to a GPU's memory; to a peer it is RDMA


def network(transport: str) -> str:
    """Equal for workers that reach each other: one that has only RDMA open cannot be written to over TCP."""
    return "rdma" if transport in (RDMA, GPUDIRECT) else "other"
