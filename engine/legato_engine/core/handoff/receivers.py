"""Sequences handed off to this worker, and cached blocks that it fetches: reserved, granted, written by a peer."""

from collections.abc import Iterable, Set

from legato_engine.core.handoff import tokens as handoff_tokens
from legato_engine.core.handoff.fetch_log import FetchLog
from legato_engine.core.reporting.outbox import Outbox
from legato_engine.scheduler.handoff.incoming import IncomingHandoffs
from legato_engine.scheduler.handoff.transfers import IncomingState, IncomingTransfer
from legato_engine.scheduler.requests.limits import RequestRejected
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.results import Emission
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.blocks.spans import WindowBlocks
from legato_engine.transfer.session.events import Aborted, Arrived, GrantRevoked, Released, WritingBegan
from legato_protocol.wire import transports
from legato_protocol.wire.block_hash import root
from legato_protocol.wire.stream import KVSource, Peer


class HandoffReceivers:
    """The scheduler's incoming transfers by room, until they are adopted or their blocks are free.

    Forwards the scheduler's grants to the agent, and the agent's events to the scheduler.
    """

    def __init__(
        self, incoming: IncomingHandoffs, agent: TransferAgent, outbox: Outbox, fetches: FetchLog, *, kv_revision: str
    ) -> None:
        self.fetches = fetches
        self._incoming = incoming
        self._agent = agent
        self._outbox = outbox
        self._kv_revision = kv_revision
        self._rooms: dict[int, IncomingTransfer] = {}
        self.received = 0
        self.failed = 0

    def __len__(self) -> int:
        return len(self._rooms)

    @property
    def keys(self) -> frozenset[str]:
        """Keys of the requests whose sequences are expected here."""
        return frozenset([transfer.request.id for transfer in self._rooms.values() if not transfer.fetch])

    def uses(self, room: int) -> bool:
        """True if a sequence is expected under this room, or its blocks are not free yet."""
        return room in self._rooms

    def reserve(self, request: Request, source: Peer, now: float) -> None:
        """Expects `request.room` from `source`. Raises `RequestRejected`."""
        assert request.room is not None
        self._rooms[request.room] = self._incoming.reserve(request, source, now)

    def fetch(self, request: Request, source: KVSource, now: float) -> bool:
        """Fetches cached blocks of the request's prefix; False if no block is missing here, or there is no room."""
        try:
            transfer = self._incoming.fetch(request, source, now)
        except RequestRejected:
            self.fetches.refuse()
            return False
        if transfer is None:
            return False
        self._rooms[source.room] = transfer
        self.fetches.begin(transfer)
        return True

    def grant(self) -> None:
        """Grants reserved blocks to senders, and revokes grants whose blocks are needed here."""
        for transfer in self._incoming.grants():
            self._grant(transfer)
        for transfer in self._incoming.revocations():
            assert transfer.request.room is not None
            self._agent.revoke(transfer.request.room)
        for room, transfer in list(self._rooms.items()):
            if transfer.fetch and transfer.state is IncomingState.ABANDONED:  # before it was granted
                self._drop(room, transfer)

    def _grant(self, transfer: IncomingTransfer) -> None:
        request, agent = transfer.request, self._agent
        assert request.room is not None
        windows = [WindowBlocks(table.first, table.blocks) for table in transfer.windows]
        where = request.room, request.attempt, transfer.source, transfer.blocks, transfer.cached
        if transfer.fetch:
            agent.fetch(*where, request.hashes, windows)
        else:
            agent.grant(*where, root(self._kv_revision, request.adapter, request.cache_salt), windows)

    def end(self, transfers: Iterable[IncomingTransfer], reason: str) -> None:
        """The scheduler has abandoned these transfers: they were cancelled, or their deadline passed."""
        for transfer in transfers:
            room = transfer.request.room
            assert room is not None
            self._agent.abort(room, reason)
            if transfer.fetch:
                self.fetches.fail(transfer, "late")
            if transfer.state is IncomingState.ABANDONED:
                del self._rooms[room]

    def end_fetches(self, awaited: Set[int]) -> None:
        """Ends the fetches that no request waits for, because theirs was cancelled or has failed."""
        for room in self.fetches.rooms - awaited:
            transfer = self._rooms[room]
            self.fetches.drop(transfer)
            self._incoming.abandon(transfer)
            self.end((transfer,), "its request has ended")

    def on_revoked(self, event: GrantRevoked) -> None:
        """The sender wrote nothing and will not: the blocks are free, and the sequence waits for others."""
        transfer = self._rooms.get(event.room)
        if transfer is None:
            return
        if transfer.over:  # ended here meanwhile
            self._incoming.on_released(transfer)
            del self._rooms[event.room]
        else:
            self._incoming.on_revoked(transfer)
            if transfer.fetch:
                self._drop(event.room, transfer)

    def on_writing_began(self, event: WritingBegan) -> None:
        """The sender has started to write, so the grant is no longer revoked."""
        transfer = self._rooms.get(event.room)
        if transfer is not None:
            self._incoming.on_written(transfer)

    def on_arrived(self, event: Arrived, now: float) -> tuple[Emission, ...]:
        """The sequence was received: it runs from now on. Returns its first tokens."""
        transfer = self._rooms.pop(event.room, None)
        if transfer is None:
            return ()
        if transfer.over:
            self._incoming.on_released(transfer)  # ended here while it was being committed
            return ()
        if transfer.fetch:
            self._incoming.keep(transfer, event.final.computed, event.firsts)
            self.fetches.complete(transfer, event)
            return ()
        request = transfer.request
        try:
            sampled = handoff_tokens.sampled_after(request, event.final)
            request.cached_tokens = max(request.cached_tokens, handoff_tokens.cached_tokens(event.final))
            emissions = self._incoming.adopt(transfer, event.final.computed, sampled, event.firsts)
        except ValueError as error:
            self.failed += 1
            self._incoming.abandon(transfer)
            self._incoming.on_released(transfer)
            self._outbox.fail(request.id, event.attempt, "transfer", f"hand-off refused: {error}", "transfer", True)
            return ()
        self.received += 1
        transport = transports.MEMORY if event.pulled else self._agent.transport
        self._outbox.report_handoff(request, event, now, transport)
        return emissions

    def on_aborted(self, event: Aborted) -> None:
        """The hand-off failed, or its sender gave it up, which is not counted. Its blocks stay reserved until
        `Released`."""
        transfer = self._rooms.get(event.room)
        if transfer is None or transfer.over:
            return
        self._incoming.abandon(transfer)
        if transfer.fetch:
            self.fetches.abort(transfer, event.cause)
            return
        self.failed += event.wanted
        self._outbox.report_abort(transfer.request.id, event)

    def on_released(self, event: Released) -> None:
        """The peer can no longer write to the blocks."""
        transfer = self._rooms.pop(event.room, None)
        if transfer is not None:
            self._incoming.on_released(transfer)

    def _drop(self, room: int, transfer: IncomingTransfer) -> None:
        """Running sequences needed the blocks of a fetch."""
        del self._rooms[room]
        self.fetches.fail(transfer, "no_room")
