"""One record for each transfer of KV: its state, its blocks, and the allowed moves.

The scheduler creates and moves the records, since the states decide which blocks are kept; the core passes them to the
transfer agent. A move that is not in the table raises. Messages to peers are in `legato_engine.transfer`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from legato_engine.kvcache.window_table import WindowTable
from legato_engine.scheduler.requests.request import Request
from legato_protocol.sampling.parameters import SamplingParams
from legato_protocol.wire.stream import Peer


class IllegalTransferMove(Exception):
    """The table has no move from the record's state to this one: a bug of the caller, not of a peer."""


class IncomingState(Enum):
    PENDING = "pending"  # waits for blocks, in order
    ALLOCATED = "allocated"  # has blocks; the grant is not sent yet
    GRANTED = "granted"  # its source may write to them
    REVOKING = "revoking"  # its source is asked to return them
    WRITING = "writing"  # its source has started to write: the blocks stay until the end
    ADOPTED = "adopted"  # the sequence runs here, in these blocks
    QUARANTINED = "quarantined"  # given up, but its source may still write
    ABANDONED = "abandoned"  # given up, without blocks


In = IncomingState

INCOMING_MOVES: Mapping[tuple[IncomingState, IncomingState], str] = {
    (In.PENDING, In.ALLOCATED): "blocks are available",
    (In.PENDING, In.ABANDONED): "cancelled",
    (In.ALLOCATED, In.GRANTED): "the grant is sent",
    (In.ALLOCATED, In.PENDING): "the blocks are needed here",
    (In.ALLOCATED, In.ABANDONED): "cancelled",
    (In.GRANTED, In.REVOKING): "the blocks are needed here",
    (In.REVOKING, In.PENDING): "the source returned them",
    (In.REVOKING, In.ABANDONED): "the source returned the blocks of a fetch",
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
    """A sequence whose KV comes from `source`, and the blocks that are reserved for it, also in tables of `windows`.

    Of a `fetch`, `request` never runs: it names full blocks, which are only cached here once they have arrived.

    The sequence's first `cached` blocks were cached here and are not transferred; the last block may be after the
    sequence's known tokens. In quarantine, `blocks` are only those that the source may still write to, of all groups.
    """

    request: Request  # runs after the transfer; its tokens are those that the gateway knows
    source: Peer
    fetch: bool = False
    state: IncomingState = IncomingState.PENDING
    blocks: list[int] = field(default_factory=list)
    windows: tuple[WindowTable, ...] = ()
    cached: int = 0

    @property
    def fresh(self) -> int:
        """Number of blocks that the source may write to."""
        return len(self.blocks) - self.cached + sum([len(table.since(self.cached).blocks) for table in self.windows])

    @property
    def all_blocks(self) -> list[int]:
        """The blocks of all groups."""
        return [*self.blocks, *(block for table in self.windows for block in table.blocks)]

    def take_back(self) -> list[list[int]]:
        """Removes and returns the blocks that the source may not write to, in each group."""
        tables, self.windows = self.windows, tuple([table.since(self.cached) for table in self.windows])
        held = [self.blocks[: self.cached], *[table.before(self.cached) for table in tables]]
        self.blocks, self.cached = self.blocks[self.cached :], 0
        return held

    @property
    def over(self) -> bool:
        """True if it is adopted or given up: its source has nothing more to do."""
        return self.state in (In.ADOPTED, In.QUARANTINED, In.ABANDONED)

    def move(self, state: IncomingState) -> None:
        """Changes the state. Raises IllegalTransferMove if the table has no such move."""
        if (self.state, state) not in INCOMING_MOVES:
            raise IllegalTransferMove(f"an incoming transfer cannot become {state.value}: it is {self.state.value}")
        self.state = state


class OutgoingState(Enum):
    PENDING = "pending"  # the receiver has no blocks for it yet; the sequence may be preempted
    GRANTED = "granted"  # its blocks are read: they stay, and the sequence is not preempted
    STOPPING = "stopping"  # a running sequence is no longer scheduled; its step in flight has to end
    FINISHED = "finished"  # everything is being sent
    CANCELLED = "cancelled"  # given up here; its blocks may still be read
    COMMITTED = "committed"  # the receiver has everything
    ABORTED = "aborted"  # its blocks are no longer read


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
    """A sequence whose KV goes to another worker: a prefill for a hand-off, or a running sequence that migrates.

    The receiver has room for `capacity` of the sequence's blocks, in groups with a window from the blocks `firsts` on;
    the first `sent` of `request.blocks` are sent or being sent.
    """

    request: Request
    room: int
    attempt: int
    state: OutgoingState = OutgoingState.PENDING
    capacity: int = 0
    firsts: tuple[int, ...] = ()
    sent: int = 0

    @property
    def migration(self) -> bool:
        """True if the sequence runs here until it is handed over, and goes on here if that fails."""
        return self.request.room is None

    @property
    def keeping(self) -> bool:
        """True if the request's blocks stay as they are, whatever happens to the request."""
        return self.state in KEEPING

    @property
    def stopped(self) -> bool:
        """True if the request is no longer scheduled."""
        return self.state in STOPPED

    def releasable(self, firsts: tuple[int, ...]) -> tuple[int, ...]:
        """The blocks of windows, at most `firsts`, before which the request's blocks may be released.

        How far a migrating sequence will have come at its end is not known, so it keeps what it has, from its grant on.
        One that is computed again after a preemption does without, or it could lack blocks for ever.
        """
        if not self.migration or not (self.keeping or self.state is Out.PENDING):
            return firsts
        if self.keeping:
            return tuple(map(min, firsts, self.firsts))
        return firsts if self.request.computed < self.request.farthest else ()

    @property
    def over(self) -> bool:
        """True if it is committed or given up."""
        return self.state in (Out.CANCELLED, Out.COMMITTED, Out.ABORTED)

    def move(self, state: OutgoingState) -> None:
        """Changes the state. Raises IllegalTransferMove if the table has no such move."""
        if (self.state, state) not in OUTGOING_MOVES:
            raise IllegalTransferMove(f"an outgoing transfer cannot become {state.value}: it is {self.state.value}")
        self.state = state


def outgoing_of(request: Request) -> OutgoingTransfer | None:
    """The request's current or last outgoing transfer."""
    transfer = request.outgoing
    assert transfer is None or isinstance(transfer, OutgoingTransfer)
    return transfer


def prefix_of(request: Request, room: int, hashes: Sequence[bytes], block_size: int, deadline: float) -> Request:
    """Returns the request of a fetch, which never runs: the blocks of these hashes, which `request` begins with."""
    tokens = request.tokens[: len(hashes) * block_size]
    return Request(
        f"fetch for {request.id}",
        request.attempt,
        tokens,
        len(tokens),
        SamplingParams(max_tokens=1, seed=0),
        deadline,
        trace=request.trace,
        room=room,
        hashes=list(hashes),
        reserved_blocks=len(hashes),
    )
