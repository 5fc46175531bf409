"""Sequences that come to this worker by hand-off: reserved, granted, written by a peer, adopted."""

from collections.abc import Iterable
from dataclasses import dataclass

from legato_engine.core import handoff_tokens
from legato_engine.core.outbox import Outbox
from legato_engine.request import Request
from legato_engine.scheduler.incoming import IncomingHandoffs
from legato_engine.scheduler.results import Emission, Reservation
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.events import Aborted, Arrived, GrantRevoked, Released, WritingBegan
from legato_protocol.block_hash import root
from legato_protocol.stream import Peer


@dataclass(slots=True, eq=False)
class ReceivingRoom:
    reservation: Reservation
    source: Peer
    silent: bool = False  # the gateway knows already that this attempt is over


class HandoffReceivers:
    """Rooms in which this worker receives, from the gateway's frame to the adoption or the release of the blocks."""

    def __init__(self, incoming: IncomingHandoffs, agent: TransferAgent, outbox: Outbox, *, kv_revision: str) -> None:
        self._incoming = incoming
        self._agent = agent
        self._outbox = outbox
        self._kv_revision = kv_revision
        self._rooms: dict[int, ReceivingRoom] = {}
        self.received = 0
        self.failed = 0

    def __len__(self) -> int:
        return len(self._rooms)

    def holds(self, key: str) -> bool:
        return any(receiving.reservation.request.id == key for receiving in self._rooms.values())

    def uses(self, room: int) -> bool:
        """Whether a sequence is awaited under this room, or its blocks are not free yet."""
        return room in self._rooms

    def reserve(self, request: Request, source: Peer, now: float) -> None:
        """Expect `request.room` from `source`. Raises `RequestRejected`."""
        assert request.room is not None
        self._rooms[request.room] = ReceivingRoom(self._incoming.reserve(request, now), source)

    def grant(self) -> None:
        """Tell senders of the blocks that were reserved for them, and ask for those that are needed here."""
        for reservation in self._incoming.grants():
            request = reservation.request
            assert request.room is not None
            parent = root(self._kv_revision, request.adapter, request.cache_salt)
            source = self._rooms[request.room].source
            self._agent.grant(request.room, request.attempt, source, reservation.blocks, reservation.cached, parent)
        for reservation in self._incoming.revocations():
            assert reservation.request.room is not None
            self._agent.revoke(reservation.request.room)

    def ended(self, reservations: Iterable[Reservation], reason: str) -> None:
        """These were cancelled, or their time ran out; the scheduler has abandoned them."""
        gone = set(reservations)
        for room, receiving in list(self._rooms.items()):
            if receiving.reservation in gone:
                receiving.silent = True
                self._agent.abort(room, reason)
                if not receiving.reservation.granted:
                    del self._rooms[room]

    def revoked(self, event: GrantRevoked) -> None:
        """The sender has put nothing and will not: the blocks are free, and the sequence waits for others."""
        receiving = self._rooms.get(event.room)
        if receiving is None:
            return
        if receiving.reservation.over:  # ended here meanwhile
            self._incoming.released(receiving.reservation)
            del self._rooms[event.room]
        else:
            self._incoming.revoked(receiving.reservation)

    def writing_began(self, event: WritingBegan) -> None:
        """What the sender has written is worth more than the blocks."""
        receiving = self._rooms.get(event.room)
        if receiving is not None:
            self._incoming.written(receiving.reservation)

    def arrived(self, event: Arrived, now: float) -> tuple[Emission, ...]:
        """The sequence is here: it runs from now on, and its first tokens are told at once."""
        receiving = self._rooms.pop(event.room, None)
        if receiving is None:
            return ()
        reservation = receiving.reservation
        if reservation.over:
            self._incoming.released(reservation)  # ended here while its commit was under way
            return ()
        request = reservation.request
        try:
            sampled = handoff_tokens.sampled_after(request, event.final)
            request.cached_tokens = max(request.cached_tokens, handoff_tokens.cached_tokens(event.final))
            emissions = self._incoming.adopt(reservation, event.final.computed, sampled)
        except ValueError as error:
            self.failed += 1
            self._incoming.abandon(reservation)
            self._incoming.released(reservation)
            self._outbox.fail(request.id, event.attempt, "transfer", f"hand-off refused: {error}", "transfer", True)
            return ()
        self.received += 1
        self._outbox.report(request.id, event, now, self._agent.transport)
        return emissions

    def aborted(self, event: Aborted) -> None:
        """It will not come this way. Its blocks stay away until `Released`."""
        receiving = self._rooms.get(event.room)
        if receiving is None:
            return
        self._incoming.abandon(receiving.reservation)
        if not receiving.silent:
            self.failed += 1
            receiving.silent = True
            self._outbox.aborted(receiving.reservation.request.id, event)

    def released(self, event: Released) -> None:
        """No peer writes to its blocks any more."""
        receiving = self._rooms.pop(event.room, None)
        if receiving is not None:
            self._incoming.released(receiving.reservation)
