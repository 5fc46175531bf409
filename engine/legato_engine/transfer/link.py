"""What carries hand-offs between two workers: the interface that `ucx` and `memory` implement.

A *connection* is one endpoint to one peer process, named by an integer of this link that is never used twice. The link
moves bytes; who the peer is, and whether it may be trusted, is `agent`'s business.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class LinkError(Exception):
    """The link cannot be opened or used as asked. Permanent: the text says what is missing."""


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
    """A control message; those of one connection arrive in the order in which they were sent."""

    connection: int
    data: bytes


@dataclass(frozen=True, slots=True)
class PutDone:
    """Every byte of the put with this tag is in the peer's memory."""

    connection: int
    tag: int


@dataclass(frozen=True, slots=True)
class PutFailed:
    """The put ended without success: some, all or none of its bytes were written. It reads and writes no more."""

    connection: int
    tag: int
    reason: str


@dataclass(frozen=True, slots=True)
class PeerDown:
    """The connection is gone (peer died, network broke, connect failed) and this side's endpoint is closed.

    As after `Fenced`: no put of the peer over this connection can land any more, and every own put over it has ended.
    """

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """The endpoint is closed, as `fence` asked: no put of the peer over this connection can land any more."""

    connection: int


LinkEvent = Connected | Received | PutDone | PutFailed | PeerDown | Fenced


class Link(Protocol):
    """Connections to peers over one transport, and one registered span of memory that peers may write to.

    No method blocks on a peer. Any but `close` raises LinkError once the link itself has failed, for no peer's fault:
    it reports nothing any more, and whoever uses it has to be replaced. Calls that name a connection that is gone
    are ignored (a put answers `PutFailed`): its `PeerDown` or `Fenced` is on its way or was read already. Each
    connection ends with exactly one of the two.
    """

    @property
    def address(self) -> bytes:
        """Where peers `connect` to."""

    @property
    def transport(self) -> str:
        """What carries the bytes, e.g. "ucx:tcp"."""

    @property
    def rkey(self) -> bytes:
        """The key that a peer must `attach` before it can put into this link's memory."""

    def connect(self, address: bytes) -> int:
        """Opens a connection; `Connected` or `PeerDown` follows. The connection's name is valid at once."""

    def attach(self, connection: int, rkey: bytes) -> None:
        """Makes the peer's memory writable over this connection. A key that does not fit ends in `PeerDown`."""

    def send(self, connection: int, data: bytes) -> None:
        """Sends a control message, reliably and in order with others of this connection."""

    def put(self, connection: int, spans: Sequence[PutSpan], tag: int) -> None:
        """Writes local memory into the peer's; `PutDone` follows when all of it is there, or `PutFailed`."""

    def fence(self, connection: int) -> None:
        """Closes this side's endpoint. Ends in `Fenced` after a `PutFailed` for each put still in flight."""

    def poll(self) -> list[LinkEvent]:
        """What has happened since the last call, oldest first. Never blocks."""

    def fileno(self) -> int:
        """A descriptor that is readable while `poll` has events."""

    def close(self) -> None:
        """Ends all connections and the listener, and lets go of the memory. No events follow."""
