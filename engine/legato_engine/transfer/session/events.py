"""Events that the transfer agent reports to the core. Plain data; every event names its room and attempt."""

from dataclasses import dataclass
from typing import Literal

from legato_protocol.wire.handoff import Final

Side = Literal["sender", "receiver"]
Cause = Literal[
    "cancelled",  # `abort` was called here
    "refused",  # the peer aborted it
    "corrupt",  # received blocks or messages contradict their announcement
    "broken",  # a put failed, for example because the connection broke
    "peer_died",  # the peer closed the connection, or another worker or epoch answered
    "peer_silent",  # its lease ended, or its connection was fenced for another session
]


@dataclass(frozen=True, slots=True)
class Granted:
    """Sender: the receiver has reserved blocks; `push` and `finish` may be called now.

    There is room for `blocks` blocks of the sequence, including the first `cached`, which the receiver has already
    (pushing them is allowed and does nothing). In groups with a window, the room begins with the blocks `firsts`.
    """

    room: int
    attempt: int
    blocks: int
    cached: int
    firsts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BlocksAsked:
    """Sender: a peer asks for cached blocks: `TransferAgent.lend` sends them, and `abort` refuses.

    `hashes[i]` is the hash of a sequence's block number `first + i`. In groups with a window, the receiver has room for
    the blocks from `firsts` on.
    """

    room: int
    attempt: int
    first: int
    hashes: tuple[bytes, ...]
    firsts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GrantRevoked:
    """The grant was revoked before anything was written.

    Sender: nothing was pushed; another `Granted` will follow (its blocks may be evicted meanwhile).
    Receiver: the granted blocks are reusable now; `grant` may be called again for the same room and attempt.
    """

    side: Side
    room: int
    attempt: int


@dataclass(frozen=True, slots=True)
class WritingBegan:
    """Receiver: the peer has started to write; the grant can no longer be revoked."""

    room: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Committed:
    """Sender: the receiver has verified every block and owns the sequence; this side's blocks may be freed."""

    room: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """Receiver: every block is verified, and the sender is notified. The sequence belongs to this worker now.

    Of a fetch, there is no sequence: the first `final.computed` tokens' blocks are here.
    """

    room: int
    attempt: int
    final: Final
    source: str  # the sending worker
    blocks: int  # transferred blocks
    cached: int
    bytes: int
    seconds: float  # from `grant` to now
    final_at: float  # clock reading at `Final`: emission time minus this, plus `final.held`, is the boundary
    firsts: tuple[int, ...] = ()  # in groups with a window, the first block that is verified or was cached
    pulled: bool = False  # the blocks were copied from the memory of a worker of the same node


@dataclass(frozen=True, slots=True)
class Aborted:
    """The hand-off failed or, if no longer `wanted`, was given up because its request ended.

    Sender: no put reads its blocks any more; they may be freed, or the sequence goes on here.
    Receiver: the gateway should be informed; the granted blocks are NOT reusable before `Released`.
    """

    side: Side
    room: int
    attempt: int
    cause: Cause
    reason: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class Released:
    """Receiver, always after `Aborted`: no write can land any more, and the granted blocks are reusable."""

    room: int
    attempt: int


TransferEvent = BlocksAsked | Granted | GrantRevoked | WritingBegan | Committed | Arrived | Aborted | Released
