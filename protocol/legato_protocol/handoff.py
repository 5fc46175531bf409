"""Messages between the two workers of a hand-off: a sender that holds a sequence's KV and a receiver that will.

Receiver → sender: `Grant`, `Revoke`, `Commit`. Sender → receiver: `Written`, `Final`, `Revoked`. Both ways: `Renew`,
`Abort`, and `AbortAck`, which answers every `Abort`, also for a room that is not known. All name (epoch, room,
attempt), where `epoch` is that of the *receiver's* arena: blocks are numbers in that arena and in no other.

The order of a session (the table itself is `legato_engine.transfer.session`):
grant → (put blocks → Written)* → Final → Commit. After an abort was seen the sender writes nothing more, and the
receiver reuses granted blocks only after `AbortAck` or after its endpoint to that peer is confirmed closed.
"""

import msgspec

from legato_protocol.messages import Message, decode_with
from legato_protocol.stream import TokenItem

VERSION = 1  # grows with whatever an older reader must not skip
OLDEST = 1  # version understood; at least that of the last release


class PeerHello(Message, tag="hi", frozen=True):
    """First message on a new connection between two workers, in both directions.

    `proof` authenticates: HMAC-SHA256 of the service's token over (worker, epoch). `arena` and `rkey` let the other
    side write blocks: base address of the arena and the packed remote key of the link.
    """

    worker: str
    epoch: str
    kv_revision: str
    layout: str
    address: bytes
    arena: int
    rkey: bytes
    proof: bytes
    version: int = VERSION
    oldest: int = 0  # version understood; 0: `version` alone


class SessionMessage(Message, frozen=True):
    epoch: str  # of the receiver's arena
    room: int
    attempt: int


class Grant(SessionMessage, tag="grant", frozen=True):
    """The receiver reserved `blocks` (ids in its arena, in order of the sequence).

    The first `cached` blocks of the sequence it holds already and wants none of: `blocks[0]` takes the sequence's
    block number `cached`. `lease` seconds without a message from the sender end the grant (after a fence).
    `serial` grows with every grant of this receiver, so that a grant that was revoked cannot be taken for the one
    that follows it.
    """

    blocks: tuple[int, ...]
    cached: int
    lease: float
    serial: int


class Revoke(SessionMessage, tag="revoke", frozen=True):
    """The receiver wants the blocks of this grant (and any before it) back. Too late once something was put."""

    serial: int


class Revoked(SessionMessage, tag="gone", frozen=True):
    """The sender put nothing under this grant or any before it, and never will."""

    serial: int


class Written(SessionMessage, tag="wrote", frozen=True):
    """Blocks `first … first + len(checksums) - 1` of the sequence are in the receiver's memory."""

    first: int
    checksums: tuple[int, ...]


class Final(SessionMessage, tag="final", frozen=True):
    """All blocks were announced; this is the rest of the sequence. It moves when the receiver commits.

    `token_ids` are all tokens whose KV was handed over plus those sampled after them; `computed` counts the former.
    `tokens` are those that the receiver has to emit: first tokens of every choice after a prefill.
    """

    token_ids: bytes
    computed: int
    tokens: tuple[TokenItem, ...]
    blocks: int  # how many of the sequence's blocks hold KV, cached ones included
    held: float = 0.0  # seconds for which the sequence has stood still at the sender, waiting for its last blocks


class Renew(SessionMessage, tag="renew", frozen=True):
    """Still working on it: the other side's lease starts over."""


class Commit(SessionMessage, tag="commit", frozen=True):
    """Every block was verified; the receiver owns the sequence, the sender may free its blocks."""


class Abort(SessionMessage, tag="abort", frozen=True):
    """It failed; or, where another try makes no sense (`retry`), nobody waits for it at its sender any more."""

    reason: str
    retry: bool = True


class AbortAck(SessionMessage, tag="ack", frozen=True):
    """No write of this session will follow."""


HandoffMessage = PeerHello | Grant | Revoke | Revoked | Written | Final | Renew | Commit | Abort | AbortAck

_messages: "msgspec.msgpack.Decoder[HandoffMessage]" = msgspec.msgpack.Decoder(HandoffMessage)


def decode(data: bytes) -> HandoffMessage:
    """A peer's message. Raises UnknownKind for a later version's, and BadFrame for anything else."""
    return decode_with(_messages, data)
