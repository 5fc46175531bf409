"""What is known of one connection to another worker."""

from dataclasses import dataclass

from legato_engine.transfer.channels import Channel
from legato_engine.transfer.seals import Token
from legato_protocol.stream import Peer


@dataclass(slots=True)
class Connection:
    """Who is there is what the peer has said, or what it was looked for by. `due` is a reading of the clock."""

    accepted: bool
    worker: str
    epoch: str
    due: float  # by when the peer has said who it is
    channel: Channel | None = None  # none before the first message of a peer that connected
    arena: int = 0
    trusted: bool = False
    closing: bool = False  # from here: the event of its end is yet to come
    refusal: str = ""  # why, if the peer was not to be trusted
    token: Token | None = None  # that its messages are sealed with

    @property
    def secured(self) -> bool:
        """Whether it goes through TLS."""
        return self.channel is not None and self.channel.secured

    def is_to(self, peer: Peer) -> bool:
        return (self.worker, self.epoch) == (peer.worker, peer.epoch)
