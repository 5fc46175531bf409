"""Shared state of the two sides of a worker's hand-offs: link, peers, memory, clock, lease, reports."""

from collections.abc import Callable
from dataclasses import dataclass, field

from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.blocks.spans import FirstBlocks, no_windows
from legato_engine.transfer.connections.peers import Peers
from legato_engine.transfer.device.interface import DeviceEvent, DirectBlocks
from legato_engine.transfer.device.staging import Staging
from legato_engine.transfer.link import Link
from legato_engine.transfer.node.interface import NodeMemory, PeerArena
from legato_engine.transfer.session.counts import TransferTotals
from legato_engine.transfer.session.events import TransferEvent
from legato_engine.transfer.session.put_rate import PutRate


@dataclass(slots=True)
class TransferContext:
    """`block_size` is in tokens, `lease` in seconds; `epoch` belongs to this worker's arena.

    Without `staging`, the link reads and writes the arena itself; `direct` sums up blocks of an arena in device memory.
    """

    link: Link
    peers: Peers
    memory: ArenaMemory
    block_size: int
    epoch: str
    checksum: bool
    lease: float
    clock: Callable[[], float]
    staging: Staging | None = None
    direct: DirectBlocks | None = None
    first_blocks: FirstBlocks = no_windows
    node: NodeMemory = field(default_factory=NodeMemory)
    outbox: list[TransferEvent] = field(default_factory=list)  # until the next poll
    totals: TransferTotals = field(default_factory=TransferTotals)
    put_rate: PutRate = field(default_factory=PutRate)
    last_step: DeviceEvent | None = None  # once done, earlier steps no longer read or write blocks

    @property
    def renewal(self) -> float:
        """Seconds between lease renewals: three may be lost within a lease."""
        return self.lease / 4

    @property
    def ended_retention(self) -> float:
        """Seconds for which an ended session is remembered and still answers."""
        return 4 * self.lease

    def readable_arena(self, connection: int) -> PeerArena | None:
        """The peer's arena if blocks may be copied from it: only checksums reveal that a block was reused meanwhile."""
        return self.node.neighbours.arena(connection) if self.checksum else None

    def fence(self, connection: int) -> None:
        """Closes this side's endpoint; then every session over this connection ends (`end_connection`)."""
        if self.peers.fence(connection):
            self.totals.fences += 1
