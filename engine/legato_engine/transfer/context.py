"""What both sides of hand-offs share: the ways out (link, peers, events to tell), the clock, the totals."""

from collections.abc import Callable
from dataclasses import dataclass, field

from legato_engine.transfer.checksum import ArenaMemory
from legato_engine.transfer.events import TransferEvent
from legato_engine.transfer.link import Link
from legato_engine.transfer.peers import Peers

Key = tuple[int, int]  # room, attempt
USED_BEFORE = "this room and attempt had a hand-off before"


@dataclass(slots=True)
class Totals:
    """Counted since start."""

    committed: int = 0
    aborted: int = 0
    fences: int = 0
    bad_messages: int = 0
    unknown_epochs: int = 0
    corrupt_blocks: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(slots=True)
class Desk:
    link: Link
    peers: Peers
    memory: ArenaMemory
    block_size: int
    epoch: str
    checksum: bool
    lease: float
    clock: Callable[[], float]
    outbox: list[TransferEvent] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)

    @property
    def renewal(self) -> float:
        """Seconds between signs of life: three may be lost within a lease."""
        return self.lease / 4

    @property
    def memory_of_ended(self) -> float:
        """Seconds for which a session that ended still answers."""
        return 4 * self.lease

    def fence(self, connection: int) -> None:
        """Ends in `connection_ended` of every session over this connection."""
        if self.peers.fence(connection):
            self.totals.fences += 1
