"""The interface of a transport between two workers, which `ucx` and `fakes.memory` implement.

A *connection* is one endpoint to one peer process, numbered by this link; numbers are never reused. The link moves
bytes; `peers` identifies the peer and decides whether to trust it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class LinkError(Exception):
    """The link cannot be opened or used. Permanent; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class PutSpan:
    """One run of bytes to write: `length` bytes at `local` here go to `remote` in the peer's registered memory."""

    local: int
    remote: int
    length: int


@dataclass(frozen=True, slots=True)
class Connected:
    """The connection can send: it was opened by `connect`, or (`accepted`) by the peer."""

    connection: int
    accepted: bool = False


@dataclass(frozen=True, slots=True)
class Received:
    """A control message; messages of one connection arrive in the order in which they were sent."""

    connection: int
    data: bytes


@dataclass(frozen=True, slots=True)
class PutDone:
    """Every byte of the put with this tag is in the peer's memory."""

    connection: int
    tag: int


@dataclass(frozen=True, slots=True)
class PutFailed:
    """The put failed: some, all or none of its bytes were written. It no longer reads or writes."""

    connection: int
    tag: int
    reason: str


@dataclass(frozen=True, slots=True)
class PeerDown:
    """The connection is lost (peer died, network broke, connect failed) and this side's endpoint is closed.

    As after `Fenced`: no put of the peer over this connection can land any more, and every own put over it has ended.
    """

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """The endpoint was closed by `fence`: no put of the peer over this connection can land any more."""

    connection: int


LinkEvent = Connected | Received | PutDone | PutFailed | PeerDown | Fenced


class Link(Protocol):
    """Connections to peers over one transport, and one registered span of memory that peers may write to.

    No method blocks on a peer. Once the link itself has failed, all methods but `close` raise LinkError; it reports
    nothing any more, and its process has to be replaced. Calls for a lost connection are ignored (a put is answered
    with `PutFailed`): each connection ends with exactly one `PeerDown` or `Fenced`, reported already or later.
    """

    @property
    def address(self) -> bytes:
        """The address that peers `connect` to."""

    @property
    def transport(self) -> str:
        """Name of the transport, such as "ucx:tcp"."""

    @property
    def rkey(self) -> bytes:
        """The key that a peer must `attach` before it can put into this link's memory."""

    def connect(self, address: bytes) -> int:
        """Opens a connection; `Connected` or `PeerDown` follows. Returns its number, which can be used immediately."""

    def attach(self, connection: int, rkey: bytes) -> None:
        """Makes the peer's memory writable over this connection. A wrong key ends in `PeerDown`."""

    def send(self, connection: int, data: bytes) -> None:
        """Sends a control message, reliably and in the order of this connection's messages."""

    def put(self, connection: int, spans: Sequence[PutSpan], tag: int) -> None:
        """Writes local memory into the peer's; `PutDone` follows when all of it is there, or `PutFailed`."""

    def fence(self, connection: int) -> None:
        """Closes this side's endpoint. Ends in `Fenced` after a `PutFailed` for each put still in flight."""

    def poll(self) -> list[LinkEvent]:
        """Events since the last call, oldest first. Never blocks."""

    def fileno(self) -> int:
        """A descriptor that is readable while `poll` has events."""

    def close(self) -> None:
        """Ends all connections and the listener, and releases the memory. No events follow."""
