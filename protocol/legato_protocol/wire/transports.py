"""Names of the transports of hand-offs."""

TCP = "ucx:tcp"
SHARED_MEMORY = "ucx:shm+tcp"
RDMA = "ucx:rdma"
MEMORY = "memory"  # of a hand-off: the receiver read the blocks from the sender's memory, on the same node
GPUDIRECT = "ucx:rdma+cuda"  # straight from and to a GPU's memory; to a peer it is RDMA


def network(transport: str) -> str:
    """Returns the transport's network; workers reach each other only within one, as RDMA endpoints do not accept
    TCP."""
    return "rdma" if transport in (RDMA, GPUDIRECT) else "other"
