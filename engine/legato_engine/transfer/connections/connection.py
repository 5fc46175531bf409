"""State of one connection to another worker."""

from dataclasses import dataclass

from legato_engine.transfer.connections.channels import Channel
from legato_engine.transfer.connections.seals import Token
from legato_protocol.wire.stream import Peer


@dataclass(slots=True)
class Connection:
    """`worker` and `epoch` are the expected peer's until its hello, then its own. `due` is a clock reading."""

    accepted: bool
    worker: str
    epoch: str
    due: float  # deadline of the peer's hello
    channel: Channel | None = None  # None before the first message of a peer that connected
    arena: int = 0
    trusted: bool = False
    closing: bool = False  # closed by this side; the event of its end follows
    refusal: str = ""  # why the peer was refused
    token: Token | None = None  # the token that seals its messages

    @property
    def secured(self) -> bool:
        """True if it uses TLS."""
        return self.channel is not None and self.channel.secured

    def is_to(self, peer: Peer) -> bool:
        return (self.worker, self.epoch) == (peer.worker, peer.epoch)
