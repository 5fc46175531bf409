"""What the two sides of a worker's hand-offs share: link, peers, memory, clock, lease, and what they report."""

from collections.abc import Callable
from dataclasses import dataclass, field

from legato_engine.transfer.checksum import ArenaMemory
from legato_engine.transfer.counts import TransferTotals
from legato_engine.transfer.device import DeviceEvent, DirectBlocks
from legato_engine.transfer.events import TransferEvent
from legato_engine.transfer.link import Link
from legato_engine.transfer.peers import Peers
from legato_engine.transfer.staging import Staging


@dataclass(slots=True)
class TransferContext:
    """`block_size` is in tokens, `lease` in seconds; `epoch` is that of the own arena. The link reaches it unless
    there is `staging`; `direct` makes the sums where the host does not reach it."""

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
    outbox: list[TransferEvent] = field(default_factory=list)  # until the next poll
    totals: TransferTotals = field(default_factory=TransferTotals)
    last_step: DeviceEvent | None = None  # blocks that the core names are written, and left alone, once it is done

    @property
    def renewal(self) -> float:
        """Seconds between signs of life: three may be lost within a lease."""
        return self.lease / 4

    @property
    def memory_of_ended(self) -> float:
        """Seconds for which a session that ended still answers."""
        return 4 * self.lease

    def fence(self, connection: int) -> None:
        """Closes this side's endpoint; then `connection_ended` comes for every session over this connection."""
        if self.peers.fence(connection):
            self.totals.fences += 1
