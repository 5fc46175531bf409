"""The receiving side: sends and revokes grants, verifies received blocks and commits."""

from collections.abc import Sequence
from operator import le

from legato_engine.transfer.blocks.landing import InArena, InDevice, InSlots, Landing
from legato_engine.transfer.blocks.spans import WindowBlocks, spans_of
from legato_engine.transfer.device.interface import BlockCopy
from legato_engine.transfer.session.context import TransferContext
from legato_engine.transfer.session.events import Arrived, Released, WritingBegan
from legato_engine.transfer.session.incoming import IncomingSession
from legato_engine.transfer.session.lifecycle import Action, Session, SessionEvent, SessionState
from legato_engine.transfer.session.registry import Key, SessionFailure, SessionRegistry
from legato_protocol.wire import block_hash, handoff
from legato_protocol.wire.stream import Peer

_QUARANTINED = frozenset((SessionState.ABORTING, SessionState.FENCING))
_NOT_HELD = "unknown here"  # reason to abort a peer's session that this side does not have


class Receiver:
    """All incoming hand-offs of a worker."""

    def __init__(self, context: TransferContext) -> None:
        self._context = context
        self.sessions = SessionRegistry("receiver", context, self._create, self._perform)
        self._serial = 0
        self._offered: list[IncomingSession] = []  # in order; their grants are not sent yet
        self._placed: list[IncomingSession] = []  # sessions that have places
        self._landing = _landing(context)
        self._pulled = InArena(context.memory, context.checksum)  # places of blocks that are copied from a peer's arena

    # calls

    def grant(
        self,
        room: int,
        attempt: int,
        peer: Peer,
        table: Sequence[int],
        cached: int,
        root: bytes,
        windows: Sequence[WindowBlocks] = (),
        wanted: Sequence[bytes] = (),
    ) -> None:
        """Lets the peer write to the sequence's blocks from number `cached` on. Raises ValueError for a wrong table.

        `wanted` are the hashes of all blocks of a fetch.
        """
        self._check_tables(table, cached, windows)
        written = [table[cached:], *[window.since(cached).blocks for window in windows]]
        blocks = tuple([block for each in written for block in each])
        if len(blocks) > self._landing.largest:
            raise ValueError(f"{len(blocks)} blocks do not fit the landing memory of {self._landing.largest}")
        into = self.sessions.open((room, attempt))
        if into.state is SessionState.REVOKED:
            into = self.sessions.restart((room, attempt))
        self.sessions.step(into, SessionEvent.OFFER)
        if into.ended:
            return
        self._serial += 1
        into.blocks, into.cached, into.root, into.serial = blocks, cached, root, self._serial
        into.wanted = tuple(wanted)
        into.firsts = tuple([window.first for window in windows])
        into.spans = spans_of([cached, *[max(first, cached) for first in into.firsts]], [*map(len, written)])
        into.since = self._context.clock()
        self.sessions.extend_lease(into)
        into.connection = self._context.peers.reach(peer)
        into.after = self._context.last_step
        self._offered.append(into)
        self.advance()

    @property
    def waiting(self) -> bool:
        """True if `advance` has to be called again soon."""
        first = next(filter(self._is_connected, self._offered), None)
        return (first is not None and not _is_writable(first)) or any(into.landing for into in self._placed)

    def advance(self) -> None:
        """Processes landed blocks and sends grants.

        A grant is sent once the peer is connected, no earlier step writes to the blocks, and there are places for them.
        """
        for into in list(self._placed):
            self._settle(into)
        self._offered = [into for into in self._offered if into.state is SessionState.CONNECTING]
        connected = list(filter(self._is_connected, self._offered))
        for into in connected:
            self.sessions.extend_lease(into)  # they wait for this worker, not for the peer
        for into in connected:
            if not _is_writable(into):
                break  # the next ones wait for the same step, or a later one
            assert into.connection is not None
            into.pulled_from = self._context.readable_arena(into.connection)
            places = self._landing_of(into).reserve(into.blocks)
            if places is None:
                break  # the next ones do not overtake it
            self._offered.remove(into)
            into.places = places
            self._placed.append(into)
            self._ready(into)

    def revoke(self, room: int) -> None:
        for into in self.sessions.in_room(room):
            if into.session.may(SessionEvent.REVOKE):
                self.sessions.step(into, SessionEvent.REVOKE)

    def cancel(self, room: int, reason: str) -> None:
        for into in self.sessions.in_room(room):
            if not into.ended:
                self.sessions.fail(into, SessionEvent.CANCEL, SessionFailure("cancelled", reason, wanted=False))

    # messages and link events

    def receive(self, connection: int, message: handoff.SessionMessage) -> None:
        """Raises IllegalSessionEvent for a message that the table does not know here."""
        into = self.sessions.open((message.room, message.attempt))
        if into.connection not in (None, connection) and not self._is_refusal(into, connection, message):
            return  # a late message of an earlier connection
        if into.connection is None:
            into.connection = connection
        try:
            self._take(into, message)
        finally:
            if into.state is SessionState.UNKNOWN:  # the message was late or wrong
                self.sessions.forget(into)
        if into.renewed:
            self.sessions.extend_lease(into)

    def quarantined(self) -> int:
        """Number of blocks of failed sessions that the peer may still write to."""
        return sum(len(into.blocks) for into in self.sessions if into.state in _QUARANTINED)

    def without_slots(self) -> int:
        """Number of grants that lack only places."""
        return sum(_is_writable(into) for into in self._offered if self._is_connected(into))

    def check_integrity(self) -> None:
        """Raises AssertionError for a block or place that is in two sessions, or a block that is not in the arena."""
        held = [block for into in self.sessions.active() for block in into.blocks]
        assert len(held) == len(set(held)), "a granted block is in two sessions"
        count = self._context.memory.num_blocks
        assert all(0 <= block < count for block in held), "a granted block is not in the arena"
        places = [place for into in self._placed if into.pulled_from is None for place in into.places]
        assert len(places) == len(set(places)), "a place is in two sessions"

    # internals

    def _check_tables(self, table: Sequence[int], cached: int, windows: Sequence[WindowBlocks]) -> None:
        arena = self._context.memory.num_blocks
        blocks = [*table, *(block for window in windows for block in window.blocks)]
        if not (0 <= cached <= len(table) and len(blocks) == len(set(blocks)) and all(0 <= b < arena for b in blocks)):
            raise ValueError(f"not a block table with {cached} cached blocks in an arena of {arena}: {blocks}")

    def _create(self, key: Key, session: Session) -> IncomingSession:
        return IncomingSession(key, session, epoch=self._context.epoch)

    def _is_connected(self, into: IncomingSession) -> bool:
        context, number = self._context, into.connection
        return number is not None and context.peers.is_trusted(number) and context.node.neighbours.is_settled(number)

    def _landing_of(self, into: IncomingSession) -> Landing:
        return self._landing if into.pulled_from is None else self._pulled

    def _ready(self, into: IncomingSession) -> None:
        """Sends the grant and begins the lease, which the time to connect does not shorten."""
        self.sessions.begin_lease(into)
        self.sessions.step(into, SessionEvent.READY)

    def _is_refusal(self, into: IncomingSession, connection: int, message: handoff.SessionMessage) -> bool:
        """True for an abort that the sender sent over its own connection before the grant reached it."""
        early = isinstance(message, handoff.Abort) and into.state is SessionState.CONNECTING
        peers = self._context.peers
        return early and into.connection is not None and peers.identity(into.connection) == peers.identity(connection)

    def _take(self, into: IncomingSession, message: handoff.SessionMessage) -> None:
        match message:
            case handoff.Written():
                self._take_written(into, message)
            case handoff.Final():
                self._take_final(into, message)
            case handoff.Revoked(serial=serial):
                if serial >= into.serial:
                    self.sessions.step(into, SessionEvent.GOT_REVOKED)
            case handoff.Abort(reason=reason, wanted=wanted):
                self.sessions.fail(into, SessionEvent.GOT_ABORT, SessionFailure("refused", reason, wanted))
            case handoff.AbortAck():
                self.sessions.step(into, SessionEvent.GOT_ACK)
            case _:
                self.sessions.step(into, SessionEvent.GOT_RENEW)

    def _take_written(self, into: IncomingSession, message: handoff.Written) -> None:
        """Starts the sums of written blocks while the next ones are being transferred."""
        last = message.first + len(message.checksums)
        self.sessions.step(into, SessionEvent.GOT_WRITTEN)
        if into.state not in (SessionState.RECEIVING, SessionState.VERIFYING):
            return
        span = into.spans[message.group] if 0 <= message.group < len(into.spans) else None
        if span is None or not span.holds(message.first, last):
            self._reject(into, "the sender announced blocks that were not granted")
            return
        if not into.accepts(message):
            self._reject(into, "the sender announced blocks that its arena does not have")
            return
        written = span.indices(message.first, last)
        indices = [i for i in written if i not in into.claimed]
        into.claimed.update((i, message.checksums[i - written.start]) for i in indices)
        into.landing.append((indices, self._land(into, indices, [i - written.start for i in indices], message.sources)))
        self._settle(into)

    def _land(
        self, into: IncomingSession, indices: Sequence[int], announced: Sequence[int], sources: Sequence[int]
    ) -> BlockCopy:
        """Moves blocks to their place: from where the peer wrote, or the `announced` of `sources` from its arena."""
        blocks = [into.blocks[i] for i in indices]
        if into.pulled_from is None:
            return self._landing.land([into.places[i] for i in indices], blocks)
        self._context.totals.bytes_pulled += len(blocks) * self._context.memory.block_bytes
        return self._context.node.pulls.begin(into.pulled_from, [sources[i] for i in announced], blocks)

    def _settle(self, into: IncomingSession) -> None:
        """Collects finished copies. After the last one, the session may commit, or an ended one frees its places."""
        while into.landing and into.landing[0][1].done():
            indices, copy = into.landing.pop(0)
            if self._context.checksum:
                into.sums.update(zip(indices, copy.sums(), strict=True))
        if into.landing:
            return
        self._try_commit(into)
        if into.ended and into in self._placed:
            self._placed.remove(into)
            self._landing_of(into).give_back(into.places)
            into.pulled_from = None
            self.sessions.report_late(into)

    def _take_final(self, into: IncomingSession, message: handoff.Final) -> None:
        self.sessions.step(into, SessionEvent.GOT_FINAL)
        if into.state is not SessionState.VERIFYING:
            return
        needed = -(-message.computed // self._context.block_size)
        fits = needed <= into.cached + into.spans[0].count and self._has_tokens(into, message)
        fits = fits and all(map(le, into.firsts, self._first_blocks(into, message)))
        if message.blocks != needed or not fits or message.computed < 0:
            self._reject(into, "the sender's last message contradicts the grant or itself")
            return
        into.final, into.final_at = message, self._context.clock()
        self.sessions.extend_lease(into)
        self._try_commit(into)

    def _has_tokens(self, into: IncomingSession, message: handoff.Final) -> bool:
        """True if the tokens of all blocks are known: from the message or, in a fetch of whole blocks, here."""
        if into.wanted:
            return message.computed % self._context.block_size == 0
        return message.computed * 4 <= len(message.token_ids)

    def _try_commit(self, into: IncomingSession) -> None:
        if into.state is not SessionState.VERIFYING or into.final is None or into.landing:
            return
        awaited = self._awaited(into, into.final)
        if any(index not in into.claimed for _, _, index in awaited):
            return
        size = self._context.block_size
        wrong = into.count_wrong(into.final, size, awaited) if self._context.checksum else 0
        if wrong:
            self._context.totals.corrupt_blocks += wrong
            self._reject(into, f"{wrong} of {len(awaited)} blocks have a wrong checksum")
        else:
            self.sessions.step(into, SessionEvent.VERIFIED)

    def _first_blocks(self, into: IncomingSession, final: handoff.Final) -> tuple[int, ...]:
        return into.first_blocks(final, self._context.block_size, self._context.first_blocks)

    def _awaited(self, into: IncomingSession, final: handoff.Final) -> list[tuple[int, int, int]]:
        return into.awaited(into.kept_blocks(self._first_blocks(into, final)), final.blocks)

    def _reject(self, into: IncomingSession, reason: str) -> None:
        self.sessions.fail(into, SessionEvent.CORRUPT, SessionFailure("corrupt", reason))

    def _perform(self, into: IncomingSession, action: Action) -> None:
        match action:
            case Action.REPORT_ARRIVED:
                self._report_arrived(into)
            case Action.REPORT_WRITING:
                self._context.outbox.append(WritingBegan(*into.key))
            case Action.REPORT_RELEASED:
                self.sessions.report(into, Released(*into.key))
            case Action.SEND_GRANT:
                lease = self._context.lease
                blocks, *others = (into.places[span.offset :][: span.count] for span in into.spans)
                windows = tuple(map(handoff.GrantedWindow, into.firsts, others))
                pulls, name = into.pulled_from is not None, into.name
                wanted = block_hash.join(list(into.wanted[into.cached :]))
                grant = handoff.Grant(*name, blocks, into.cached, lease, into.serial, windows, pulls, wanted)
                self.sessions.send(into, grant)
            case Action.SEND_REVOKE:
                self.sessions.send(into, handoff.Revoke(*into.name, into.serial))
            case Action.SEND_COMMIT:
                self.sessions.send(into, handoff.Commit(*into.name))
            case Action.SEND_ABORT:
                reason = into.failure.reason if into.failure else _NOT_HELD
                self.sessions.send(into, handoff.Abort(*into.name, reason))
            case _:
                raise AssertionError(f"a receiver does not {action.value}")

    def _report_arrived(self, into: IncomingSession) -> None:
        assert into.final is not None
        assert into.connection is not None
        context, travelled = self._context, len(self._awaited(into, into.final))
        size = travelled * context.memory.block_bytes
        context.totals.committed += 1
        context.totals.bytes_received += size
        source, seconds = context.peers.identity(into.connection)[0], context.clock() - into.since
        arrived = Arrived(
            *into.key,
            into.final,
            source,
            travelled,
            into.cached,
            size,
            seconds,
            into.final_at,
            into.kept_blocks(self._first_blocks(into, into.final)),
            into.pulled_from is not None,
        )
        context.outbox.append(arrived)


def _landing(context: TransferContext) -> Landing:
    if context.staging is not None:
        return InSlots(context.staging)
    if context.direct is not None:
        return InDevice(context.memory, context.direct)
    return InArena(context.memory, context.checksum)


def _is_writable(into: IncomingSession) -> bool:
    """True if no step of this worker writes to the blocks any more."""
    return into.after is None or into.after.done()
