"""One record for each transfer of a sequence's KV: where it stands, in which blocks, and what may happen to it next.

The scheduler makes and moves the records, since blocks are kept or taken back by their states; the core passes them on
to what carries the KV. A move that is not in the table raises. What a peer is told, and when, is the business of
`legato_engine.transfer`: none of it is repeated here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from legato_engine.request import Request
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


I = IncomingState  # noqa: E741

INCOMING_MOVES: Mapping[tuple[IncomingState, IncomingState], str] = {
    (I.PENDING, I.ALLOCATED): "blocks are available",
    (I.PENDING, I.ABANDONED): "cancelled",
    (I.ALLOCATED, I.GRANTED): "the source is told",
    (I.ALLOCATED, I.PENDING): "the blocks are needed here",
    (I.ALLOCATED, I.ABANDONED): "cancelled",
    (I.GRANTED, I.REVOKING): "the blocks are needed here",
    (I.REVOKING, I.PENDING): "the source gave them back",
    (I.GRANTED, I.WRITING): "first write",
    (I.REVOKING, I.WRITING): "first write, too late to revoke",
    (I.GRANTED, I.ADOPTED): "all KV was here already",
    (I.REVOKING, I.ADOPTED): "all KV was here already",
    (I.WRITING, I.ADOPTED): "committed",
    (I.GRANTED, I.QUARANTINED): "cancelled or failed",
    (I.REVOKING, I.QUARANTINED): "cancelled or failed",
    (I.WRITING, I.QUARANTINED): "cancelled or failed",
    (I.QUARANTINED, I.ABANDONED): "no write can follow",
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
        return self.state in (I.ADOPTED, I.QUARANTINED, I.ABANDONED)

    def move(self, state: IncomingState) -> None:
        """Raises IllegalTransferMove where the table has no such move."""
        if (self.state, state) not in INCOMING_MOVES:
            raise IllegalTransferMove(f"an incoming transfer cannot become {state.value}: it is {self.state.value}")
        self.state = state
