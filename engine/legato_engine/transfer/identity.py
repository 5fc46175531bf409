"""Values that a worker's hand-offs are set up with."""

from dataclasses import dataclass, field

from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.blocks.spans import FirstBlocks, no_windows
from legato_engine.transfer.connections.channels import Channels
from legato_engine.transfer.device.interface import DirectBlocks
from legato_engine.transfer.device.staging import Staging
from legato_engine.transfer.node.interface import NodeMemory


@dataclass(frozen=True, slots=True)
class TransferIdentity:
    """A worker as its peers know it: they hand off only to the same KV revision and layout. `epoch` is its arena's."""

    worker: str
    epoch: str
    kv_revision: str
    layout: str
    token: str  # proves that this is a worker of the same service
    channels: Channels = field(default_factory=Channels)  # control messages are not encrypted by default


@dataclass(frozen=True, slots=True)
class TransferArena:
    """The arena, with blocks of `block_size` tokens. The link has registered `memory`, or the slots of `staging`.

    An arena in device memory needs `staging`, or `direct` and a link for such memory; else ValueError. Through `node`,
    workers of the same node read each other's arenas.
    """

    memory: ArenaMemory
    block_size: int
    staging: Staging | None = None
    direct: DirectBlocks | None = None
    first_blocks: FirstBlocks = no_windows
    node: NodeMemory = field(default_factory=NodeMemory)

    def __post_init__(self) -> None:
        if not (self.memory.on_host or self.staging or self.direct):
            raise ValueError("device memory needs staging or direct access")

    @property
    def registered(self) -> int:
        """The address of the memory that the link has registered."""
        return self.staging.copies.address if self.staging else self.memory.address


@dataclass(frozen=True, slots=True)
class TransferPolicy:
    """A session ends after `lease` seconds of a peer's silence. With `checksum`, receivers verify written blocks."""

    checksum: bool = True
    lease: float = 10.0
