"""One record for each transfer of a sequence's KV: where it stands, in which blocks, and what may happen to it next.

The scheduler makes and moves the records, since blocks are kept or taken back by their states; the core passes them on
to what carries the KV. A move that is not in the table raises. What a peer is told, and when, is the business of
`legato_engine.transfer`: none of it is repeated here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from legato_engine.scheduler.request import Request
from legato_protocol.stream import Peer


class IllegalTransferMove(Exception):
    """The table does not lead from the record's state to this one: the caller is wrong, not a peer."""


class IncomingState(Enum):
    PENDING = "pending"  # waits for blocks, in order
    ALLOCATED = "allocated"  # has blocks; its source was not told yet
    GRANTED = "granted"  # its source may write to them
    REVOKING = "revoking"  # its source is asked to give them back
    WRITING = "writing"  # its source has begun: the blocks stay with it to the end
    ADOPTED = "adopted"  # the sequence runs here, in these blocks
    QUARANTINED = "quarantined"  # given up, but its source may still write
    ABANDONED = "abandoned"  # given up, without blocks


In = IncomingState

INCOMING_MOVES: Mapping[tuple[IncomingState, IncomingState], str] = {
    (In.PENDING, In.ALLOCATED): "blocks are available",
    (In.PENDING, In.ABANDONED): "cancelled",
    (In.ALLOCATED, In.GRANTED): "the source is told",
    (In.ALLOCATED, In.PENDING): "the blocks are needed here",
    (In.ALLOCATED, In.ABANDONED): "cancelled",
    (In.GRANTED, In.REVOKING): "the blocks are needed here",
    (In.REVOKING, In.PENDING): "the source gave them back",
    (In.GRANTED, In.WRITING): "first write",
    (In.REVOKING, In.WRITING): "first write, too late to revoke",
    (In.GRANTED, In.ADOPTED): "all KV was here already",
    (In.REVOKING, In.ADOPTED): "all KV was here already",
    (In.WRITING, In.ADOPTED): "committed",
    (In.GRANTED, In.QUARANTINED): "cancelled or failed",
    (In.REVOKING, In.QUARANTINED): "cancelled or failed",
    (In.WRITING, In.QUARANTINED): "cancelled or failed",
    (In.QUARANTINED, In.ABANDONED): "no write can follow",
}


@dataclass(eq=False, slots=True)
class IncomingTransfer:
    """A sequence whose KV comes from `source`, and the blocks that are reserved for it.

    `blocks[:cached]` were here already and are not transferred; the last block may lie behind the sequence's known
    tokens. In quarantine, `blocks` are those that the source may still write to.
    """

    request: Request  # what it becomes; its tokens are those that the gateway knows
    source: Peer
    state: IncomingState = IncomingState.PENDING
    blocks: list[int] = field(default_factory=list)
    cached: int = 0

    @property
    def fresh(self) -> int:
        """How many of `blocks` the source may write to."""
        return len(self.blocks) - self.cached

    @property
    def over(self) -> bool:
        """Adopted or given up: nothing more is expected of its source."""
        return self.state in (In.ADOPTED, In.QUARANTINED, In.ABANDONED)

    def move(self, state: IncomingState) -> None:
        """Raises IllegalTransferMove where the table has no such move."""
        if (self.state, state) not in INCOMING_MOVES:
            raise IllegalTransferMove(f"an incoming transfer cannot become {state.value}: it is {self.state.value}")
        self.state = state


class OutgoingState(Enum):
    PENDING = "pending"  # the receiver has no blocks for it yet: the sequence's own may be taken
    GRANTED = "granted"  # its blocks are read: they stay, and the sequence is not preempted
    STOPPING = "stopping"  # a running sequence makes no more tokens; its step in flight has to end
    FINISHED = "finished"  # all that is handed over is on its way
    CANCELLED = "cancelled"  # given up here; its blocks may be read still
    COMMITTED = "committed"  # the receiver has all of it
    ABORTED = "aborted"  # nothing of it is read any more


Out = OutgoingState
KEEPING = (Out.GRANTED, Out.STOPPING, Out.FINISHED, Out.CANCELLED)  # blocks are read in these states
STOPPED = (Out.STOPPING, Out.FINISHED)  # the sequence is not scheduled in these states

OUTGOING_MOVES: Mapping[tuple[OutgoingState, OutgoingState], str] = {
    (Out.PENDING, Out.GRANTED): "the receiver has blocks",
    (Out.GRANTED, Out.PENDING): "the receiver takes them back",
    (Out.STOPPING, Out.PENDING): "the receiver takes them back",
    (Out.GRANTED, Out.STOPPING): "last part is due, its step in flight",
    (Out.GRANTED, Out.FINISHED): "last part is sent",
    (Out.STOPPING, Out.FINISHED): "last part is sent",
    (Out.FINISHED, Out.COMMITTED): "committed",
    (Out.CANCELLED, Out.COMMITTED): "committed before it was cancelled",
    (Out.PENDING, Out.ABORTED): "cancelled or failed",
    (Out.GRANTED, Out.CANCELLED): "cancelled",
    (Out.STOPPING, Out.CANCELLED): "cancelled",
    (Out.FINISHED, Out.CANCELLED): "cancelled",
    (Out.GRANTED, Out.ABORTED): "failed",
    (Out.STOPPING, Out.ABORTED): "failed",
    (Out.FINISHED, Out.ABORTED): "failed",
    (Out.CANCELLED, Out.ABORTED): "nothing is read any more",
}


@dataclass(eq=False, slots=True)
class OutgoingTransfer:
    """A sequence whose KV goes elsewhere: a prefill for a hand-off, or a running sequence that migrates.

    `capacity` is how many of the sequence's blocks there is room for; `sent` leading ones of `request.blocks` are on
    their way or there.
    """

    request: Request
    room: int
    attempt: int
    state: OutgoingState = OutgoingState.PENDING
    capacity: int = 0
    sent: int = 0

    @property
    def migration(self) -> bool:
        """Whether the sequence runs here until it is handed over, and goes on here if that fails."""
        return self.request.room is None

    @property
    def keeping(self) -> bool:
        """Whether the request's blocks stay as they are, whatever happens to the request."""
        return self.state in KEEPING

    @property
    def stopped(self) -> bool:
        """Whether the request is not scheduled any more."""
        return self.state in STOPPED

    @property
    def over(self) -> bool:
        """Committed or given up: nobody waits for it."""
        return self.state in (Out.CANCELLED, Out.COMMITTED, Out.ABORTED)

    def move(self, state: OutgoingState) -> None:
        """Raises IllegalTransferMove where the table has no such move."""
        if (self.state, state) not in OUTGOING_MOVES:
            raise IllegalTransferMove(f"an outgoing transfer cannot become {state.value}: it is {self.state.value}")
        self.state = state


def outgoing_of(request: Request) -> OutgoingTransfer | None:
    """The transfer of its KV to elsewhere, under way or the last one there was."""
    transfer = request.outgoing
    assert transfer is None or isinstance(transfer, OutgoingTransfer)
    return transfer
