"""The hand-offs of a core that has a transport: its agent, and the scheduler's two sides."""

from dataclasses import dataclass

from legato_engine.core.handoff.receivers import HandoffReceivers
from legato_engine.core.handoff.senders import HandoffSenders
from legato_engine.transfer.agent import TransferAgent


@dataclass(frozen=True, slots=True)
class HandoffSides:
    """`senders` has the sequences that leave this worker, `receivers` the ones that arrive."""

    agent: TransferAgent
    senders: HandoffSenders
    receivers: HandoffReceivers

    def uses(self, room: int) -> bool:
        """True if a hand-off of this worker has that room."""
        return self.senders.uses(room) or self.receivers.uses(room)
