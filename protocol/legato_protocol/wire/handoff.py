"""Messages between the two workers of a hand-off: the sender holds a sequence's KV, the receiver takes it over.

A *fetch* is the same without a sequence: the receiver grants room for cached blocks that it asks for by their hashes.
Receiver → sender: `Grant`, `Revoke`, `Commit`. Sender → receiver: `Written`, `Final`, `Revoked`. Both ways: `Renew`,
`Abort`, and `AbortAck`, which answers every `Abort`, also for an unknown room. All name (epoch, room, attempt). `epoch`
identifies the *receiver's* arena: block numbers are valid in that arena only.

The order of a session (the table itself is `legato_engine.transfer.session.lifecycle`):
grant → (put blocks → Written)* → Final → Commit. After an abort was seen the sender writes nothing more, and the
receiver reuses granted blocks only after `AbortAck` or after its endpoint to that peer is confirmed closed.
"""

import msgspec

from legato_protocol.wire.messages import Count, Message, Value, decode_with
from legato_protocol.wire.stream import TokenItem

VERSION = 1  # incremented by changes that an older reader must not skip
OLDEST = 1  # oldest version understood; at least the last release's version


class PeerHello(Message, tag="hi", frozen=True):
    """First message on a new connection between two workers, in both directions.

    `proof` authenticates: HMAC-SHA256 of the service's token over (worker, epoch). `arena` and `rkey` let the other
    side write blocks: base address of the arena and the packed remote key of the link. `node` is the boot id of the
    kernel if workers of the same one may read this worker's arena, else "".
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
    node: str = ""


class SessionMessage(Message, frozen=True):
    epoch: str  # of the receiver's arena
    room: int
    attempt: int


class GrantedWindow(Value, frozen=True):
    """Blocks for a group of layers with a window: the first is for the sequence's block number `first` or, if that is
    larger, for the number of blocks that the receiver has already."""

    first: Count
    blocks: tuple[Count, ...]


class Grant(SessionMessage, tag="grant", frozen=True):
    """The receiver reserved `blocks` (ids in its arena, in the sequence's order).

    The receiver has the sequence's first `cached` blocks already: `blocks[0]` is for the sequence's block number
    `cached`. `windows` are for the groups of layers after the first. `lease` seconds without a message from the sender
    end the grant (after a fence). `serial` grows with every grant of this receiver, so that a revoked grant cannot be
    mistaken for its successor. With `pulls`, which only a sender with `PeerHello.node` gets, nothing is put: the
    receiver copies the blocks from the sender's arena.

    With `wanted`, the receiver asks for cached blocks instead of a sequence: the joined hashes of the blocks that
    `blocks` are for. The sender writes the leading ones that it has, and ends with a `Final` without tokens, or aborts.
    """

    blocks: tuple[int, ...]
    cached: int
    lease: float
    serial: int
    windows: tuple[GrantedWindow, ...] = ()
    pulls: bool = False
    wanted: bytes = b""


class Revoke(SessionMessage, tag="revoke", frozen=True):
    """The receiver asks for the blocks of this grant, and of earlier ones. It is too late once something was put."""

    serial: int


class Revoked(SessionMessage, tag="gone", frozen=True):
    """The sender has put nothing under this grant or an earlier one, and never will."""

    serial: int


class Written(SessionMessage, tag="wrote", frozen=True):
    """Blocks `first … first + len(checksums) - 1` of the sequence, in one group of layers, are in the receiver's
    memory; or, if the grant `pulls`, in the blocks `sources` of the sender's arena."""

    first: int
    checksums: tuple[int, ...]
    group: int = 0
    sources: tuple[Count, ...] = ()


class Final(SessionMessage, tag="final", frozen=True):
    """All blocks were announced; this is the rest of the sequence, which moves when the receiver commits.

    `token_ids` are all tokens whose KV was handed over, `computed` in number, and the tokens sampled after them.
    The receiver emits `tokens`: the first token of every choice after a prefill. Of a fetch, there are no tokens, and
    `computed` is the number of tokens in the blocks that the sender had.
    """

    token_ids: bytes
    computed: int
    tokens: tuple[TokenItem, ...]
    blocks: int  # number of the sequence's blocks that hold KV, cached ones included
    held: float = 0.0  # seconds for which the sequence was paused at the sender, waiting for its last blocks


class Renew(SessionMessage, tag="renew", frozen=True):
    """The hand-off is still in progress: the other side's lease starts over."""


class Commit(SessionMessage, tag="commit", frozen=True):
    """Every block was verified: the receiver owns the sequence, and the sender may free its blocks."""


class Abort(SessionMessage, tag="abort", frozen=True):
    """The hand-off is over; with `wanted` false, the sender's request has ended, and nothing failed."""

    reason: str
    wanted: bool = True


class AbortAck(SessionMessage, tag="ack", frozen=True):
    """No write of this session will follow."""


HandoffMessage = PeerHello | Grant | Revoke | Revoked | Written | Final | Renew | Commit | Abort | AbortAck

_messages: "msgspec.msgpack.Decoder[HandoffMessage]" = msgspec.msgpack.Decoder(HandoffMessage)


def decode(data: bytes) -> HandoffMessage:
    """Decodes a peer's message. Raises UnknownKind for one of a later version, and BadFrame for anything else."""
    return decode_with(_messages, data)
