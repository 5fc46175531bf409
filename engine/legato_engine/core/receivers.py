"""Sequences that come to this worker by hand-off: reserved, granted, written by a peer, adopted."""

from collections.abc import Iterable

from legato_engine.core import handoff_tokens
from legato_engine.core.outbox import Outbox
from legato_engine.scheduler.incoming import IncomingHandoffs
from legato_engine.scheduler.request import Request
from legato_engine.scheduler.results import Emission
from legato_engine.scheduler.transfers import IncomingState, IncomingTransfer
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.events import Aborted, Arrived, GrantRevoked, Released, WritingBegan
from legato_protocol.block_hash import root
from legato_protocol.stream import Peer


class HandoffReceivers:
    """The scheduler's incoming transfers by room, until they are adopted or their blocks are free.

    The agent is told what the scheduler grants, and the scheduler what the agent reports."""

    def __init__(self, incoming: IncomingHandoffs, agent: TransferAgent, outbox: Outbox, *, kv_revision: str) -> None:
        self._incoming = incoming
        self._agent = agent
        self._outbox = outbox
        self._kv_revision = kv_revision
        self._rooms: dict[int, IncomingTransfer] = {}
        self.received = 0
        self.failed = 0

    def __len__(self) -> int:
        return len(self._rooms)

    def holds(self, key: str) -> bool:
        return any(transfer.request.id == key for transfer in self._rooms.values())

    def uses(self, room: int) -> bool:
        """Whether a sequence is awaited under this room, or its blocks are not free yet."""
        return room in self._rooms

    def reserve(self, request: Request, source: Peer, now: float) -> None:
        """Expect `request.room` from `source`. Raises `RequestRejected`."""
        assert request.room is not None
        self._rooms[request.room] = self._incoming.reserve(request, source, now)

    def grant(self) -> None:
        """Tell senders of the blocks that were reserved for them, and ask for those that are needed here."""
        for transfer in self._incoming.grants():
            request = transfer.request
            assert request.room is not None
            parent = root(self._kv_revision, request.adapter, request.cache_salt)
            self._agent.grant(request.room, request.attempt, transfer.source, transfer.blocks, transfer.cached, parent)
        for transfer in self._incoming.revocations():
            assert transfer.request.room is not None
            self._agent.revoke(transfer.request.room)

    def ended(self, transfers: Iterable[IncomingTransfer], reason: str) -> None:
        """These were cancelled, or their time ran out; the scheduler has abandoned them."""
        for transfer in transfers:
            room = transfer.request.room
            assert room is not None
            self._agent.abort(room, reason)
            if transfer.state is IncomingState.ABANDONED:
                del self._rooms[room]

    def revoked(self, event: GrantRevoked) -> None:
        """The sender has put nothing and will not: the blocks are free, and the sequence waits for others."""
        transfer = self._rooms.get(event.room)
        if transfer is None:
            return
        if transfer.over:  # ended here meanwhile
            self._incoming.released(transfer)
            del self._rooms[event.room]
        else:
            self._incoming.revoked(transfer)

    def writing_began(self, event: WritingBegan) -> None:
        """What the sender has written is worth more than the blocks."""
        transfer = self._rooms.get(event.room)
        if transfer is not None:
            self._incoming.written(transfer)

    def arrived(self, event: Arrived, now: float) -> tuple[Emission, ...]:
        """The sequence is here: it runs from now on, and its first tokens are told at once."""
        transfer = self._rooms.pop(event.room, None)
        if transfer is None:
            return ()
        if transfer.over:
            self._incoming.released(transfer)  # ended here while its commit was under way
            return ()
        request = transfer.request
        try:
            sampled = handoff_tokens.sampled_after(request, event.final)
            request.cached_tokens = max(request.cached_tokens, handoff_tokens.cached_tokens(event.final))
            emissions = self._incoming.adopt(transfer, event.final.computed, sampled)
        except ValueError as error:
            self.failed += 1
            self._incoming.abandon(transfer)
            self._incoming.released(transfer)
            self._outbox.fail(request.id, event.attempt, "transfer", f"hand-off refused: {error}", "transfer", True)
            return ()
        self.received += 1
        self._outbox.report(request, event, now, self._agent.transport)
        return emissions

    def aborted(self, event: Aborted) -> None:
        """It will not come this way. Its blocks stay away until `Released`. Nobody waits for one that ended here, and
        one that was given up at its sender did not fail."""
        transfer = self._rooms.get(event.room)
        if transfer is None or transfer.over:
            return
        self._incoming.abandon(transfer)
        self.failed += event.retry
        self._outbox.aborted(transfer.request.id, event)

    def released(self, event: Released) -> None:
        """No peer writes to its blocks any more."""
        transfer = self._rooms.pop(event.room, None)
        if transfer is not None:
            self._incoming.released(transfer)
