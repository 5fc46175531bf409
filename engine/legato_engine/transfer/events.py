"""What the transfer agent reports to the core. Plain data; every event names its room and attempt."""

from dataclasses import dataclass
from typing import Literal

from legato_protocol.handoff import Final

Side = Literal["sender", "receiver"]
Cause = Literal[
    "cancelled",  # `abort` was called here
    "refused",  # the peer aborted it
    "corrupt",  # what came is not what was announced
    "broken",  # a put failed, as it does when the connection breaks
    "peer_died",  # the connection ended at its other end, or another worker or epoch answers there
    "peer_silent",  # its lease ended, or its connection was fenced for another session's
]


@dataclass(frozen=True, slots=True)
class Granted:
    """Sender: the receiver has reserved blocks; `push` and `finish` may be called now.

    `blocks` is how many blocks of the sequence there is room for, the first `cached` included, which the receiver holds
    already (pushing them is allowed and does nothing).
    """

    room: int
    attempt: int
    blocks: int
    cached: int


@dataclass(frozen=True, slots=True)
class GrantRevoked:
    """The grant was taken back before anything was written.

    Sender: pushed nothing yet; waits for another `Granted` (its blocks may be evicted meanwhile).
    Receiver: the granted blocks are reusable now; `grant` may be called again for the same room and attempt.
    """

    side: Side
    room: int
    attempt: int


@dataclass(frozen=True, slots=True)
class WritingBegan:
    """Receiver: the peer has put something; the grant cannot be revoked any more."""

    room: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Committed:
    """Sender: the receiver has verified every block and owns the sequence; this side's blocks may be freed."""

    room: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """Receiver: every block is here and verified, and the sender informed. The sequence is this worker's now."""

    room: int
    attempt: int
    final: Final
    source: str  # the sending worker
    blocks: int  # that travelled
    cached: int
    bytes: int
    seconds: float  # from `grant` to now
    final_at: float  # clock reading when `Final` came: emission time minus this, and `final.held`, are the boundary


@dataclass(frozen=True, slots=True)
class Aborted:
    """The hand-off failed; `retry` says whether another try (elsewhere, or later) may succeed.

    Sender: no put reads its blocks any more, they may be freed (or the sequence goes on here).
    Receiver: the gateway is to be informed; the granted blocks are NOT reusable before `Released`.
    """

    side: Side
    room: int
    attempt: int
    cause: Cause
    reason: str
    retry: bool


@dataclass(frozen=True, slots=True)
class Released:
    """Receiver, always after its `Aborted`: no write can land any more, the granted blocks are reusable."""

    room: int
    attempt: int


TransferEvent = Granted | GrantRevoked | WritingBegan | Committed | Arrived | Aborted | Released
