"""The hand-offs of a core that has a transport: its agent, and the scheduler's two sides."""

from dataclasses import dataclass

from legato_engine.core.handoff.lenders import BlockLenders
from legato_engine.core.handoff.receivers import HandoffReceivers
from legato_engine.core.handoff.senders import HandoffSenders
from legato_engine.transfer.agent import TransferAgent


@dataclass(frozen=True, slots=True)
class HandoffSides:
    """`senders` has the sequences that leave this worker, `receivers` what arrives, `lenders` what others fetch."""

    agent: TransferAgent
    senders: HandoffSenders
    receivers: HandoffReceivers
    lenders: BlockLenders

    def uses(self, room: int) -> bool:
        """True if a hand-off of this worker has that room."""
        return self.senders.uses(room) or self.receivers.uses(room)
