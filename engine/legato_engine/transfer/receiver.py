"""The receiving side: performs what the session table asks, and verifies what arrived."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from legato_engine.transfer.checksum import bind
from legato_engine.transfer.context import USED_BEFORE, Desk, Key
from legato_engine.transfer.events import Aborted, Arrived, Cause, Released, Revoked, WritingBegan
from legato_engine.transfer.session import Action, Event, Session, State
from legato_protocol import block_hash, handoff
from legato_protocol.stream import Peer

_RENEWING = frozenset((State.OFFERED, State.REVOKING, State.RECEIVING))
_LEASED = _RENEWING | {State.CONNECTING, State.VERIFYING, State.ABORTING}
_HOLDING = _LEASED | {State.FENCING}
_QUARANTINED = frozenset((State.ABORTING, State.FENCING))


@dataclass(slots=True)
class Receiving:
    """One hand-off that this worker receives. It holds `blocks` until it has arrived or they are released."""

    session: Session
    connection: int | None = None  # the one that carries the grant: nothing else may write
    blocks: tuple[int, ...] = ()
    cached: int = 0
    root: bytes = b""
    serial: int = 0
    since: float = 0.0
    due: float = 0.0  # end of the lease; of the memory, once ended
    renew_at: float = 0.0
    claimed: dict[int, int] = field(default_factory=dict)  # by the sequence's block: the sender's checksum
    found: dict[int, int] = field(default_factory=dict)  # and the sum of the bytes that are here
    final: handoff.Final | None = None
    final_at: float = 0.0
    cause: Cause = "cancelled"  # of the end; with `reason` it is that of the first thing that went wrong
    reason: str = ""
    retry: bool = True


class Receiver:
    """All incoming hand-offs by (room, attempt)."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._sessions: dict[Key, Receiving] = {}
        self._serial = 0

    # calls

    def grant(self, room: int, attempt: int, peer: Peer, blocks: Sequence[int], cached: int, root: bytes) -> None:
        """`blocks` are those that the peer writes to: the sequence's from number `cached` on."""
        key = (room, attempt)
        old = self._sessions.get(key)
        if old is not None and old.session.state is State.REVOKED:
            del self._sessions[key]
        into = self._open(key)
        if into.session.ended and not into.reason:
            into.cause, into.reason = "refused", USED_BEFORE
        self._step(key, into, Event.OFFER)
        if into.session.state is not State.CONNECTING:
            return
        now = self._desk.clock()
        self._serial += 1
        into.blocks, into.cached, into.root, into.serial = tuple(blocks), cached, root, self._serial
        into.since, into.due = now, now + self._desk.lease
        into.connection = self._desk.peers.reach(peer)
        if self._desk.peers.trusted(into.connection):
            self._ready(key, into)

    def revoke(self, room: int) -> None:
        for key, into in list(self._sessions.items()):
            if key[0] == room and into.session.may(Event.REVOKE):
                self._step(key, into, Event.REVOKE)

    def cancel(self, room: int, reason: str) -> None:
        for key, into in list(self._sessions.items()):
            if key[0] == room and not into.session.ended:
                self._fail(key, into, Event.CANCEL, "cancelled", reason, False)

    # messages and link events

    def receive(self, connection: int, message: handoff.SessionMessage) -> None:
        """Raises IllegalMove for a message that the table does not know here."""
        key = (message.room, message.attempt)
        known = self._sessions.get(key)
        if known is not None and known.connection not in (None, connection) and not self._is_refusal(known, message):
            return  # an old connection's leftover
        into = known or self._open(key)
        if into.connection is None:
            into.connection = connection
        try:
            self._take(key, into, message)
        finally:
            if into.session.state is State.UNKNOWN:  # the message was late or wrong and has begun nothing
                del self._sessions[key]
        if into.session.state in _RENEWING:
            into.due = self._desk.clock() + self._desk.lease

    def connection_ready(self, connection: int) -> None:
        for key, into in list(self._sessions.items()):
            if into.connection == connection and into.session.state is State.CONNECTING:
                self._ready(key, into)

    def peer_busy(self, connection: int) -> None:
        """The sender lives and cannot answer now."""
        for into in self._sessions.values():
            if into.connection == connection and into.session.state in _LEASED:
                into.due = self._desk.clock() + self._desk.lease

    def connection_ended(self, connection: int, fenced: bool, cause: Cause, reason: str) -> None:
        for key, into in list(self._sessions.items()):
            if into.connection == connection and not into.session.ended:
                event = Event.FENCED if fenced and into.session.state is State.FENCING else Event.PEER_DOWN
                self._fail(key, into, event, cause, f"the sender is gone: {reason}", True)

    def tick(self, now: float) -> None:
        for key, into in list(self._sessions.items()):
            state = into.session.state
            if state in _LEASED and now >= into.due:
                self._fail(key, into, Event.LEASE_END, "peer_silent", "the sender said nothing for too long", True)
            elif state in _RENEWING and now >= into.renew_at and into.connection is not None:
                into.renew_at = now + self._desk.renewal
                self._desk.peers.send(into.connection, handoff.Renew(self._desk.epoch, *key))
            elif into.session.ended and now >= into.due:
                del self._sessions[key]

    def timers(self) -> Iterator[float]:
        """When `tick` has something to do."""
        for into in self._sessions.values():
            if into.session.state in _RENEWING:
                yield min(into.due, into.renew_at)
            elif into.session.state is not State.FENCING:
                yield into.due

    def active(self) -> list[Receiving]:
        return [into for into in self._sessions.values() if into.session.state in _HOLDING]

    def quarantined(self) -> int:
        return sum(len(into.blocks) for into in self._sessions.values() if into.session.state in _QUARANTINED)

    def check_integrity(self) -> None:
        held = [block for into in self.active() for block in into.blocks]
        assert len(held) == len(set(held)), "a granted block is in two sessions"
        count = self._desk.memory.num_blocks
        assert all(0 <= block < count for block in held), "a granted block is not in the arena"

    # inside

    def _open(self, key: Key) -> Receiving:
        if key not in self._sessions:
            due = self._desk.clock() + self._desk.memory_of_ended
            self._sessions[key] = Receiving(Session("receiver"), due=due)
        return self._sessions[key]

    def _ready(self, key: Key, into: Receiving) -> None:
        """The grant goes out, and the sender's lease begins: what connecting took is not taken off it."""
        now = self._desk.clock()
        into.due, into.renew_at = now + self._desk.lease, now + self._desk.renewal
        self._step(key, into, Event.READY)

    def _is_refusal(self, into: Receiving, message: handoff.SessionMessage) -> bool:
        """A sender may refuse over a connection of its own before the grant reached it."""
        return isinstance(message, handoff.Abort) and into.session.state is State.CONNECTING

    def _take(self, key: Key, into: Receiving, message: handoff.SessionMessage) -> None:
        match message:
            case handoff.Written():
                self._written(key, into, message)
            case handoff.Final():
                self._final(key, into, message)
            case handoff.Revoked(serial=serial):
                if serial >= into.serial:
                    self._step(key, into, Event.GOT_REVOKED)
            case handoff.Abort(reason=reason, retry=retry):
                self._fail(key, into, Event.GOT_ABORT, "refused", reason, retry)
            case handoff.AbortAck():
                self._step(key, into, Event.GOT_ACK)
            case _:
                self._step(key, into, Event.GOT_RENEW)

    def _written(self, key: Key, into: Receiving, message: handoff.Written) -> None:
        last = message.first + len(message.checksums)
        holding = into.session.state in (State.OFFERED, State.REVOKING, State.RECEIVING, State.VERIFYING)
        self._step(key, into, Event.GOT_WRITTEN)
        if not holding:
            return
        if message.first < into.cached or last > into.cached + len(into.blocks):
            self._fail(key, into, Event.CORRUPT, "corrupt", "the sender announced blocks that were not granted", True)
            return
        indices = [i for i in range(message.first, last) if i not in into.claimed]
        into.claimed.update((i, message.checksums[i - message.first]) for i in indices)
        if self._desk.checksum:
            sums = self._desk.memory.sums([into.blocks[i - into.cached] for i in indices])
            into.found.update(zip(indices, sums, strict=True))
        self._try_commit(key, into)

    def _final(self, key: Key, into: Receiving, message: handoff.Final) -> None:
        self._step(key, into, Event.GOT_FINAL)
        if into.session.state is not State.VERIFYING:
            return
        needed = -(-message.computed // self._desk.block_size)
        fits = needed <= into.cached + len(into.blocks) and message.computed * 4 <= len(message.token_ids)
        if message.blocks != needed or not fits or message.computed < 0:
            self._fail(
                key, into, Event.CORRUPT, "corrupt", "the sender's last message contradicts the grant or itself", True
            )
            return
        into.final, into.final_at = message, self._desk.clock()
        into.due = into.final_at + self._desk.lease
        self._try_commit(key, into)

    def _try_commit(self, key: Key, into: Receiving) -> None:
        if into.session.state is not State.VERIFYING or into.final is None:
            return
        indices = range(into.cached, into.final.blocks)
        if any(i not in into.claimed for i in indices):
            return
        wrong = self._count_wrong(key[0], into, indices) if self._desk.checksum else 0
        if wrong:
            self._desk.totals.corrupt_blocks += wrong
            self._fail(
                key, into, Event.CORRUPT, "corrupt", f"{wrong} of {len(indices)} blocks have a wrong checksum", True
            )
        else:
            self._step(key, into, Event.VERIFIED)

    def _count_wrong(self, room: int, into: Receiving, indices: range) -> int:
        assert into.final is not None
        size, computed = self._desk.block_size, into.final.computed
        tokens = into.final.token_ids[: computed * 4]
        hashes = block_hash.chain(tokens, size, into.root)
        if computed % size:
            parent = hashes[-1] if hashes else into.root
            hashes.append(block_hash.child(parent, tokens[computed // size * size * 4 :]))
        return sum(bind(into.found[i], room, i, hashes[i]) != into.claimed[i] for i in indices)

    def _fail(self, key: Key, into: Receiving, event: Event, cause: Cause, reason: str, retry: bool) -> None:
        if not into.reason:
            into.cause, into.reason, into.retry = cause, reason, retry
        self._step(key, into, event)

    def _step(self, key: Key, into: Receiving, event: Event) -> None:
        ended, quarantined = into.session.ended, into.session.state in _QUARANTINED
        for action in into.session.step(event):
            self._perform(key, into, action)
        now = self._desk.clock()
        if into.session.ended and not ended:
            into.due = now + self._desk.memory_of_ended
        elif into.session.state is State.ABORTING and not quarantined:
            into.due = now + self._desk.lease

    def _perform(self, key: Key, into: Receiving, action: Action) -> None:
        desk = self._desk
        match action:
            case Action.TELL_ARRIVED:
                self._tell_arrived(key, into)
            case Action.TELL_WRITING:
                desk.outbox.append(WritingBegan(*key))
            case Action.TELL_REVOKED:
                desk.outbox.append(Revoked("receiver", *key))
            case Action.TELL_ABORTED:
                desk.totals.aborted += 1
                desk.outbox.append(Aborted("receiver", *key, into.cause, into.reason, into.retry))
            case Action.TELL_RELEASED:
                desk.outbox.append(Released(*key))
            case Action.FENCE:
                if into.connection is not None:
                    desk.fence(into.connection)
            case _:
                self._send(key, into, action)

    def _tell_arrived(self, key: Key, into: Receiving) -> None:
        assert into.final is not None
        assert into.connection is not None
        desk, travelled = self._desk, max(0, into.final.blocks - into.cached)
        size = travelled * desk.memory.block_bytes
        desk.totals.committed += 1
        desk.totals.bytes_received += size
        source, seconds = desk.peers.identity(into.connection)[0], desk.clock() - into.since
        arrived = Arrived(*key, into.final, source, travelled, into.cached, size, seconds, into.final_at)
        desk.outbox.append(arrived)

    def _send(self, key: Key, into: Receiving, action: Action) -> None:
        desk, number = self._desk, into.connection
        if number is None:
            return
        match action:
            case Action.SEND_GRANT:
                grant = handoff.Grant(desk.epoch, *key, into.blocks, into.cached, desk.lease, into.serial)
                desk.peers.send(number, grant)
            case Action.SEND_REVOKE:
                desk.peers.send(number, handoff.Revoke(desk.epoch, *key, into.serial))
            case Action.SEND_COMMIT:
                desk.peers.send(number, handoff.Commit(desk.epoch, *key))
            case Action.SEND_ABORT:
                desk.peers.send(number, handoff.Abort(desk.epoch, *key, into.reason or "unknown here", True))
            case Action.SEND_ACK:
                desk.peers.send(number, handoff.AbortAck(desk.epoch, *key))
            case _:
                raise AssertionError(f"a receiver does not {action.value}")
