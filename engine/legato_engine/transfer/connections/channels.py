"""The channels of connections between workers: TLS or plain."""

from typing import Protocol

from legato_engine.transfer.connections.certificates import HandoffCertificates
from legato_engine.transfer.connections.tls_channel import MARK, ChannelError, TLSChannel
from legato_protocol.wire.stream import Peer


class PlainRefused(ChannelError):
    """The peer does not use TLS, which is required here."""


class Channel(Protocol):
    """Encodes the control messages of one connection; see `TLSChannel`."""

    @property
    def secured(self) -> bool:
        """True if the peer has shown its certificate once this is `ready`."""

    @property
    def ready(self) -> bool:
        """True if messages can be sent."""

    def outgoing(self) -> bytes: ...

    def wrap(self, message: bytes) -> bytes: ...

    def receive(self, data: bytes) -> bytes | None: ...


class PlainChannel:
    """Passes messages through unchanged."""

    secured = False
    ready = True

    def outgoing(self) -> bytes:
        return b""

    def wrap(self, message: bytes) -> bytes:
        return message

    def receive(self, data: bytes) -> bytes | None:
        return data


class Channels:
    """Creates the channels of one worker's connections. Each shows the current certificate."""

    def __init__(self, certificates: HandoffCertificates | None = None, *, strict: bool = False) -> None:
        """Without `certificates` no connection uses TLS; with `strict` every connection does."""
        assert certificates is not None or not strict
        self._certificates = certificates
        self._strict = strict

    @property
    def tls(self) -> bool:
        """True if peers may use TLS."""
        return self._certificates is not None

    def secures(self, peer: Peer) -> bool:
        """True if connections to this peer must use TLS."""
        return self._certificates is not None and (self._strict or peer.tls)

    def connect(self, peer: Peer) -> Channel:
        """Creates the channel of a connection that this worker opens."""
        if self._certificates is None or not self.secures(peer):
            return PlainChannel()
        return TLSChannel(self._certificates.current().client, self._certificates.name, connects=True)

    def accept(self, first: bytes) -> Channel:
        """Creates the channel of a connection that a peer opened, given its first message. Raises ChannelError."""
        if first.startswith(MARK):
            if self._certificates is None:
                raise ChannelError("it speaks TLS, and this worker has no internal TLS")
            return TLSChannel(self._certificates.current().server, self._certificates.name, connects=False)
        if self._strict:
            raise PlainRefused("it speaks no TLS, and internal TLS is Strict here")
        return PlainChannel()
