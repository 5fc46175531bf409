"""The receiving side: grants are sent and taken back, and what arrives is verified before it is committed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from legato_engine.transfer.checksum import bind
from legato_engine.transfer.context import TransferContext
from legato_engine.transfer.device import DeviceEvent
from legato_engine.transfer.events import Arrived, Released, WritingBegan
from legato_engine.transfer.registry import Key, SessionFailure, SessionRecord, SessionRegistry
from legato_engine.transfer.session import Action, Session, SessionEvent, SessionState
from legato_protocol import block_hash, handoff
from legato_protocol.stream import Peer

_QUARANTINED = frozenset((SessionState.ABORTING, SessionState.FENCING))
_NOT_HELD = "unknown here"  # why a peer's session is aborted that this side does not have


@dataclass(slots=True)
class IncomingSession(SessionRecord):
    """One hand-off that this worker receives. It holds `blocks` until it has arrived or they are released.

    Grant and writes go over `connection`: nothing else may write.
    """

    blocks: tuple[int, ...] = ()
    cached: int = 0
    root: bytes = b""
    serial: int = 0
    since: float = 0.0
    claimed: dict[int, int] = field(default_factory=dict)  # by the sequence's block: the sender's checksum
    found: dict[int, int] = field(default_factory=dict)  # and the sum of the bytes that are here
    final: handoff.Final | None = None
    final_at: float = 0.0
    after: DeviceEvent | None = None  # until then, earlier steps may write to the blocks


class Receiver:
    """All incoming hand-offs of a worker."""

    def __init__(self, context: TransferContext) -> None:
        self._context = context
        self.sessions = SessionRegistry("receiver", context, self._create, self._perform)
        self._serial = 0
        self._offered: list[IncomingSession] = []  # in order: their grants are not sent yet

    # calls

    def grant(self, room: int, attempt: int, peer: Peer, table: Sequence[int], cached: int, root: bytes) -> None:
        """The peer writes to the sequence's blocks from number `cached` on. Raises ValueError for a wrong table."""
        arena = self._context.memory.num_blocks
        if not (0 <= cached <= len(table) == len(set(table)) and all(0 <= block < arena for block in table)):
            raise ValueError(f"not a block table with {cached} cached blocks in an arena of {arena}: {list(table)}")
        into = self.sessions.open((room, attempt))
        if into.state is SessionState.REVOKED:
            into = self.sessions.restart((room, attempt))
        self.sessions.step(into, SessionEvent.OFFER)
        if into.ended:
            return
        self._serial += 1
        into.blocks, into.cached, into.root, into.serial = tuple(table[cached:]), cached, root, self._serial
        into.since = self._context.clock()
        self.sessions.extend_lease(into)
        into.connection = self._context.peers.reach(peer)
        into.after = self._context.last_step
        self._offered.append(into)
        self.advance()

    @property
    def waiting(self) -> bool:
        """Whether `advance` has something to look after soon."""
        return any(self._is_connected(into) for into in self._offered)

    def advance(self) -> None:
        """Grants go out once the peer is known, and the device has done all that it was to do with the blocks."""
        self._offered = [into for into in self._offered if into.state is SessionState.CONNECTING]
        for into in list(filter(self._is_connected, self._offered)):
            if into.after is not None and not into.after.done():
                break  # those behind it wait for the same step, or a later one
            self._offered.remove(into)
            self._ready(into)

    def revoke(self, room: int) -> None:
        for into in self.sessions.of_room(room):
            if into.session.may(SessionEvent.REVOKE):
                self.sessions.step(into, SessionEvent.REVOKE)

    def cancel(self, room: int, reason: str) -> None:
        for into in self.sessions.of_room(room):
            if not into.ended:
                self.sessions.fail(into, SessionEvent.CANCEL, SessionFailure("cancelled", reason, retry=False))

    # messages and link events

    def receive(self, connection: int, message: handoff.SessionMessage) -> None:
        """Raises IllegalSessionEvent for a message that the table does not know here."""
        into = self.sessions.open((message.room, message.attempt))
        if into.connection not in (None, connection) and not self._is_refusal(into, connection, message):
            return  # an old connection's leftover
        if into.connection is None:
            into.connection = connection
        try:
            self._take(into, message)
        finally:
            if into.state is SessionState.UNKNOWN:  # the message was late or wrong and has begun nothing
                self.sessions.forget(into)
        if into.renewed:
            self.sessions.extend_lease(into)

    def quarantined(self) -> int:
        """Blocks of sessions that have failed, which the peer may still write to."""
        return sum(len(into.blocks) for into in self.sessions if into.state in _QUARANTINED)

    def check_integrity(self) -> None:
        """Raises AssertionError for a block that is in two sessions, or not in the arena."""
        held = [block for into in self.sessions.active() for block in into.blocks]
        assert len(held) == len(set(held)), "a granted block is in two sessions"
        count = self._context.memory.num_blocks
        assert all(0 <= block < count for block in held), "a granted block is not in the arena"

    # inside

    def _create(self, key: Key, session: Session) -> IncomingSession:
        return IncomingSession(key, session, epoch=self._context.epoch)

    def _is_connected(self, into: IncomingSession) -> bool:
        return into.connection is not None and self._context.peers.trusted(into.connection)

    def _ready(self, into: IncomingSession) -> None:
        """The grant goes out, and the sender's lease begins: what connecting took is not taken off it."""
        self.sessions.begin_lease(into)
        self.sessions.step(into, SessionEvent.READY)

    def _is_refusal(self, into: IncomingSession, connection: int, message: handoff.SessionMessage) -> bool:
        """A sender may refuse over a connection of its own before the grant reached it."""
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
            case handoff.Abort(reason=reason, retry=retry):
                self.sessions.fail(into, SessionEvent.GOT_ABORT, SessionFailure("refused", reason, retry))
            case handoff.AbortAck():
                self.sessions.step(into, SessionEvent.GOT_ACK)
            case _:
                self.sessions.step(into, SessionEvent.GOT_RENEW)

    def _take_written(self, into: IncomingSession, message: handoff.Written) -> None:
        """Sums up what was written now, while the next blocks are on their way."""
        last = message.first + len(message.checksums)
        self.sessions.step(into, SessionEvent.GOT_WRITTEN)
        if into.state not in (SessionState.RECEIVING, SessionState.VERIFYING):
            return
        if message.first < into.cached or last > into.cached + len(into.blocks):
            self._reject(into, "the sender announced blocks that were not granted")
            return
        indices = [i for i in range(message.first, last) if i not in into.claimed]
        into.claimed.update((i, message.checksums[i - message.first]) for i in indices)
        if self._context.checksum:
            sums = self._context.memory.sums([into.blocks[i - into.cached] for i in indices])
            into.found.update(zip(indices, sums, strict=True))
        self._try_commit(into)

    def _take_final(self, into: IncomingSession, message: handoff.Final) -> None:
        self.sessions.step(into, SessionEvent.GOT_FINAL)
        if into.state is not SessionState.VERIFYING:
            return
        needed = -(-message.computed // self._context.block_size)
        fits = needed <= into.cached + len(into.blocks) and message.computed * 4 <= len(message.token_ids)
        if message.blocks != needed or not fits or message.computed < 0:
            self._reject(into, "the sender's last message contradicts the grant or itself")
            return
        into.final, into.final_at = message, self._context.clock()
        self.sessions.extend_lease(into)
        self._try_commit(into)

    def _try_commit(self, into: IncomingSession) -> None:
        if into.state is not SessionState.VERIFYING or into.final is None:
            return
        indices = range(into.cached, into.final.blocks)
        if any(i not in into.claimed for i in indices):
            return
        wrong = self._count_wrong(into, into.final, indices) if self._context.checksum else 0
        if wrong:
            self._context.totals.corrupt_blocks += wrong
            self._reject(into, f"{wrong} of {len(indices)} blocks have a wrong checksum")
        else:
            self.sessions.step(into, SessionEvent.VERIFIED)

    def _count_wrong(self, into: IncomingSession, final: handoff.Final, indices: range) -> int:
        """Blocks whose bytes are not those that the sender announced for the tokens of `final`."""
        size, room = self._context.block_size, into.key[0]
        tokens = final.token_ids[: final.computed * 4]
        hashes = block_hash.chain(tokens, size, into.root)
        if final.computed % size:
            parent = hashes[-1] if hashes else into.root
            hashes.append(block_hash.child(parent, tokens[final.computed // size * size * 4 :]))
        return sum(bind(into.found[i], room, i, hashes[i]) != into.claimed[i] for i in indices)

    def _reject(self, into: IncomingSession, reason: str) -> None:
        self.sessions.fail(into, SessionEvent.CORRUPT, SessionFailure("corrupt", reason))

    def _perform(self, into: IncomingSession, action: Action) -> None:
        match action:
            case Action.REPORT_ARRIVED:
                self._report_arrived(into)
            case Action.REPORT_WRITING:
                self._context.outbox.append(WritingBegan(*into.key))
            case Action.REPORT_RELEASED:
                self._context.outbox.append(Released(*into.key))
            case Action.SEND_GRANT:
                lease = self._context.lease
                grant = handoff.Grant(*into.name, into.blocks, into.cached, lease, into.serial)
                self.sessions.send(into, grant)
            case Action.SEND_REVOKE:
                self.sessions.send(into, handoff.Revoke(*into.name, into.serial))
            case Action.SEND_COMMIT:
                self.sessions.send(into, handoff.Commit(*into.name))
            case Action.SEND_ABORT:
                reason = into.failure.reason if into.failure else _NOT_HELD
                self.sessions.send(into, handoff.Abort(*into.name, reason, True))
            case _:
                raise AssertionError(f"a receiver does not {action.value}")

    def _report_arrived(self, into: IncomingSession) -> None:
        assert into.final is not None
        assert into.connection is not None
        context, travelled = self._context, max(0, into.final.blocks - into.cached)
        size = travelled * context.memory.block_bytes
        context.totals.committed += 1
        context.totals.bytes_received += size
        source, seconds = context.peers.identity(into.connection)[0], context.clock() - into.since
        arrived = Arrived(*into.key, into.final, source, travelled, into.cached, size, seconds, into.final_at)
        context.outbox.append(arrived)
