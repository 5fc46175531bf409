"""Which connections between workers go through TLS, and what the others are."""

from typing import Protocol

from legato_engine.transfer.certificates import HandoffCertificates
from legato_engine.transfer.tls_channel import MARK, ChannelError, TLSChannel
from legato_protocol.stream import Peer


class PlainRefused(ChannelError):
    """The peer does not speak TLS, and has to."""


class Channel(Protocol):
    """What control messages of one connection go through; see `TLSChannel`."""

    @property
    def secured(self) -> bool:
        """Whether the peer has shown its certificate, once this is `ready`."""

    @property
    def ready(self) -> bool:
        """Whether messages can be sent."""

    def outgoing(self) -> bytes: ...

    def wrapped(self, message: bytes) -> bytes: ...

    def receive(self, data: bytes) -> bytes | None: ...


class PlainChannel:
    """Messages as they are."""

    secured = False
    ready = True

    def outgoing(self) -> bytes:
        return b""

    def wrapped(self, message: bytes) -> bytes:
        return message

    def receive(self, data: bytes) -> bytes | None:
        return data


class Channels:
    """The channels of one worker's connections. New ones show the certificates that are in the files then."""

    def __init__(self, certificates: HandoffCertificates | None = None, *, strict: bool = False) -> None:
        """Without certificates there is no TLS; `strict`: with them, there is nothing else."""
        assert certificates is not None or not strict
        self._certificates = certificates
        self._strict = strict

    @property
    def tls(self) -> bool:
        """Whether peers may begin with TLS."""
        return self._certificates is not None

    def secures(self, peer: Peer) -> bool:
        """Whether all that is said to and by this peer must go through TLS."""
        return self._certificates is not None and (self._strict or peer.tls)

    def connect(self, peer: Peer) -> Channel:
        """For a connection that is opened here."""
        if self._certificates is None or not self.secures(peer):
            return PlainChannel()
        return TLSChannel(self._certificates.current().client, self._certificates.name, connects=True)

    def accept(self, first: bytes) -> Channel:
        """For a connection that a peer opened, whose first message this is. Raises ChannelError."""
        if first.startswith(MARK):
            if self._certificates is None:
                raise ChannelError("it speaks TLS, and this worker has no internal TLS")
            return TLSChannel(self._certificates.current().server, self._certificates.name, connects=False)
        if self._strict:
            raise PlainRefused("it speaks no TLS, and internal TLS is Strict here")
        return PlainChannel()
