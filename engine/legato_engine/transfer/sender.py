"""The sending side: performs what the session table asks, and turns pushed blocks into puts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from legato_engine.transfer.checksum import bind
from legato_engine.transfer.context import USED_BEFORE, Desk, Key
from legato_engine.transfer.events import Aborted, Cause, Committed, Granted, Revoked
from legato_engine.transfer.link import PutDone, PutFailed, Span
from legato_engine.transfer.session import Action, Event, Session, State
from legato_protocol import block_hash, handoff
from legato_protocol.stream import Peer, TokenItem

_RENEWING = frozenset((State.GRANTED, State.PUSHING))
_AWAITING = _RENEWING | {State.FINISHED, State.DRAINING, State.ANSWERING}  # something of the receiver
_LEASED = _AWAITING | {State.PARKED}


@dataclass(slots=True)
class _Push:
    """One put in flight and what is announced when it is done."""

    first: int
    checksums: tuple[int, ...]
    bytes: int


@dataclass(slots=True)
class Sending:
    """One hand-off that this worker sends."""

    session: Session
    peer: Peer | None = None
    root: bytes = b""
    connection: int | None = None  # the one that brought the grant: every put and message goes over it
    grant: handoff.Grant | None = None
    last_serial: int = 0  # of grants that are gone
    due: float = 0.0  # end of the lease; of the memory, once ended
    renew_at: float = 0.0
    next_block: int = 0  # of the sequence, that `push` may bring
    parent: bytes = b""  # hash of the last pushed block
    pushes: dict[int, _Push] = field(default_factory=dict)
    final: handoff.Final | None = None
    finished_at: float = 0.0  # when the core had nothing more to add
    cause: Cause = "cancelled"  # of the end; with `reason` it is that of the first thing that went wrong
    reason: str = ""
    retry: bool = True


class Sender:
    """All outgoing hand-offs by (room, attempt)."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._sessions: dict[Key, Sending] = {}
        self._newest: dict[int, Key] = {}  # by room
        self._tags: dict[int, Key] = {}
        self._next_tag = 0

    # calls

    def expect(self, room: int, attempt: int, peer: Peer, root: bytes) -> None:
        key = (room, attempt)
        out = self._open(key)
        if out.session.state is State.PARKED and not self._is_from(out, peer):
            self._fail(key, out, Event.CANCEL, "refused", "the grant came from another worker or epoch", True)
            out = self._sessions[key] = Sending(Session("sender"))
        if out.session.ended and not out.reason:
            out.cause, out.reason = "refused", USED_BEFORE
        out.peer, out.root, out.parent = peer, root, root
        self._newest[room] = key
        self._step(key, out, Event.EXPECT)

    def push(self, room: int, first: int, blocks: Sequence[int], hashes: Sequence[bytes]) -> None:
        key, out = self._live(room)
        if out is None or out.grant is None or not blocks:
            return
        if first != out.next_block or len(blocks) != len(hashes) or out.final is not None:
            raise ValueError(f"blocks from {first} pushed where {out.next_block} is next, with {len(hashes)} hashes")
        out.next_block += len(blocks)
        out.parent = hashes[-1]
        skip = max(0, out.grant.cached - first)
        if skip < len(blocks):
            self._put(key, out, first + skip, blocks[skip:], hashes[skip:])

    def finish(
        self, room: int, token_ids: bytes, computed: int, tokens: Sequence[TokenItem], partial: int | None
    ) -> None:
        key, out = self._live(room)
        if out is None or out.grant is None or out.connection is None:
            return
        rest = computed % self._desk.block_size
        full = computed // self._desk.block_size
        if out.next_block != full or (partial is None) != (rest == 0) or computed * 4 > len(token_ids):
            raise ValueError(f"finished at {computed} tokens with {out.next_block} full blocks, partial {partial}")
        if partial is not None:
            tail = token_ids[(computed - rest) * 4 : computed * 4]
            self.push(room, full, (partial,), (block_hash.child(out.parent, tail),))
        epoch = self._desk.peers.epoch(out.connection) if self._desk.peers.trusted(out.connection) else ""
        out.finished_at = self._desk.clock()
        out.final = handoff.Final(epoch, *key, token_ids, computed, tuple(tokens), out.next_block)
        self._settle(key, out)

    def unwritten(self, room: int) -> int:
        _, out = self._live(room)
        return sum(len(push.checksums) for push in out.pushes.values()) if out else 0

    def cancel(self, room: int, reason: str) -> None:
        for key, out in list(self._sessions.items()):
            if key[0] == room and not out.session.ended and out.session.state is not State.UNKNOWN:
                self._fail(key, out, Event.CANCEL, "cancelled", reason, False)

    # messages and link events

    def receive(self, connection: int, message: handoff.SessionMessage) -> None:
        """Raises IllegalMove for a message that the table does not know here."""
        key = (message.room, message.attempt)
        known = self._sessions.get(key)
        if known is not None and known.connection not in (None, connection):
            return  # an old connection's leftover
        out = known or self._open(key)
        match message:
            case handoff.Grant():
                self._granted(key, out, connection, message)
            case handoff.Revoke(serial=serial):
                if out.grant is None or serial >= out.grant.serial:
                    self._revoked(key, out, connection, serial)
            case handoff.Abort(reason=reason, retry=retry):
                out.connection = connection
                self._fail(key, out, Event.GOT_ABORT, "refused", reason, retry)
            case handoff.Commit():
                self._step(key, out, Event.GOT_COMMIT)
            case handoff.AbortAck():
                self._step(key, out, Event.GOT_ACK)
            case _:
                self._step(key, out, Event.GOT_RENEW)
        if out.session.state in _RENEWING:
            out.due = self._desk.clock() + self._desk.lease

    def put_ended(self, event: PutDone | PutFailed) -> None:
        key = self._tags.pop(event.tag, None)
        if key is None:
            return
        out = self._sessions[key]
        push = out.pushes.pop(event.tag)
        if isinstance(event, PutFailed):
            self._fail(key, out, Event.PUT_FAILED, "broken", f"could not write: {event.reason}", True)
        elif out.session.state is State.PUSHING and out.connection is not None:
            self._desk.totals.bytes_sent += push.bytes
            written = handoff.Written(self._epoch(out), *key, push.first, push.checksums)
            self._desk.peers.send(out.connection, written)
        self._settle(key, out)

    def peer_busy(self, connection: int) -> None:
        """The receiver lives and cannot answer now."""
        for out in self._sessions.values():
            if out.connection == connection and out.session.state in _AWAITING:
                out.due = self._desk.clock() + self._desk.lease

    def connection_ended(self, connection: int, fenced: bool, cause: Cause, reason: str) -> None:
        for key, out in list(self._sessions.items()):
            if out.connection == connection and not out.session.ended:
                event = Event.FENCED if fenced and out.session.state is State.FENCING else Event.PEER_DOWN
                self._fail(key, out, event, cause, f"the receiver is gone: {reason}", True)

    def tick(self, now: float) -> None:
        for key, out in list(self._sessions.items()):
            state = out.session.state
            if state in _LEASED and now >= out.due:
                self._fail(key, out, Event.LEASE_END, "peer_silent", "the receiver said nothing for too long", True)
            elif state in _RENEWING and now >= out.renew_at and out.connection is not None:
                out.renew_at = now + self._desk.renewal
                self._desk.peers.send(out.connection, handoff.Renew(self._epoch(out), *key))
            elif (out.session.ended or state is State.UNKNOWN) and now >= out.due and not out.pushes:
                del self._sessions[key]
                if self._newest.get(key[0]) == key:
                    del self._newest[key[0]]

    def timers(self) -> Iterator[float]:
        """When `tick` has something to do."""
        for out in self._sessions.values():
            if out.session.state in _RENEWING:
                yield min(out.due, out.renew_at)
            elif out.session.state not in (State.WAITING, State.FENCING):
                yield out.due

    def active(self) -> list[Sending]:
        ended = (State.UNKNOWN, State.PARKED)
        return [out for out in self._sessions.values() if not out.session.ended and out.session.state not in ended]

    def check_integrity(self) -> None:
        in_flight = {tag for out in self._sessions.values() for tag in out.pushes}
        assert in_flight == set(self._tags), f"puts {in_flight} belong to sessions, {set(self._tags)} are in flight"
        for key, out in self._sessions.items():
            assert not (out.session.ended and out.pushes), f"{key} has ended with puts in flight"

    # inside

    def _open(self, key: Key) -> Sending:
        if key not in self._sessions:
            due = self._desk.clock() + self._desk.memory_of_ended
            self._sessions[key] = Sending(Session("sender"), due=due)
        return self._sessions[key]

    def _live(self, room: int) -> tuple[Key, Sending | None]:
        key = self._newest.get(room)
        if key is None:
            return (room, 0), None
        out = self._sessions[key]
        return key, out if out.session.state in _RENEWING else None

    def _is_from(self, out: Sending, peer: Peer) -> bool:
        peers, number = self._desk.peers, out.connection
        return number is not None and peers.trusted(number) and peers.identity(number) == (peer.worker, peer.epoch)

    def _epoch(self, out: Sending) -> str:
        assert out.grant is not None
        return out.grant.epoch

    def _granted(self, key: Key, out: Sending, connection: int, grant: handoff.Grant) -> None:
        if out.session.ended:
            out.connection = connection
            self._step(key, out, Event.GOT_GRANT)
            return
        foreign = out.peer is not None and self._desk.peers.identity(connection) != (out.peer.worker, out.peer.epoch)
        if foreign or grant.serial <= out.last_serial or out.grant is not None:
            return
        out.grant, out.connection = grant, connection
        now = self._desk.clock()
        out.due, out.renew_at = now + self._desk.lease, now + self._desk.renewal
        self._step(key, out, Event.GOT_GRANT)

    def _revoked(self, key: Key, out: Sending, connection: int, serial: int) -> None:
        before = out.session.state
        if before in (State.UNKNOWN, State.PARKED, State.WAITING, State.GRANTED, State.ABORTED):
            out.last_serial = max(out.last_serial, serial)
            out.connection = connection
        self._step(key, out, Event.GOT_REVOKE)
        if out.session.state in (State.UNKNOWN, State.WAITING):
            out.grant, out.connection, out.next_block, out.parent = None, None, 0, out.root
            out.due = self._desk.clock() + self._desk.memory_of_ended

    def _put(self, key: Key, out: Sending, first: int, blocks: Sequence[int], hashes: Sequence[bytes]) -> None:
        assert out.grant is not None
        assert out.connection is not None
        size, memory, offset = self._desk.memory.block_bytes, self._desk.memory, first - out.grant.cached
        targets = out.grant.blocks[offset : offset + len(blocks)]
        if len(targets) != len(blocks):
            raise ValueError(f"room {key[0]} has a grant for {len(out.grant.blocks)} blocks, no more")
        spans: list[Span] = []
        for block, target in zip(blocks, targets, strict=True):
            local, remote = memory.address + block * size, self._desk.peers.arena(out.connection) + target * size
            last = spans[-1] if spans else None
            if last and (local, remote) == (last.local + last.length, last.remote + last.length):
                spans[-1] = Span(last.local, last.remote, last.length + size)
            else:
                spans.append(Span(local, remote, size))
        sums = memory.sums(blocks) if self._desk.checksum else [0] * len(blocks)
        checksums = tuple(bind(total, key[0], first + i, hashes[i]) for i, total in enumerate(sums))
        self._step(key, out, Event.PUT)
        self._next_tag += 1
        self._tags[self._next_tag] = key
        out.pushes[self._next_tag] = _Push(first, checksums, len(blocks) * size)
        self._desk.link.put(out.connection, spans, self._next_tag)

    def _settle(self, key: Key, out: Sending) -> None:
        """After a put has ended: is it the moment that something waited for?"""
        if out.pushes:
            return
        if out.session.state in (State.DRAINING, State.ANSWERING, State.FENCING):
            self._step(key, out, Event.DRAINED)
        elif out.final is not None and out.session.state in _RENEWING:
            self._step(key, out, Event.FINISH)
            out.due = self._desk.clock() + self._desk.lease

    def _fail(self, key: Key, out: Sending, event: Event, cause: Cause, reason: str, retry: bool) -> None:
        if not out.reason:
            out.cause, out.reason, out.retry = cause, reason, retry
        self._step(key, out, event)
        if out.session.state in (State.DRAINING, State.ANSWERING):
            self._settle(key, out)

    def _step(self, key: Key, out: Sending, event: Event) -> None:
        ended = out.session.ended
        before = out.session.state
        for action in out.session.step(event):
            self._perform(key, out, action)
        if out.session.ended and not ended:
            out.due = self._desk.clock() + self._desk.memory_of_ended
        elif out.session.state in (State.DRAINING, State.ANSWERING) and before in _RENEWING:
            out.due = self._desk.clock() + self._desk.lease

    def _perform(self, key: Key, out: Sending, action: Action) -> None:
        desk = self._desk
        match action:
            case Action.TELL_GRANTED:
                assert out.grant is not None
                desk.outbox.append(Granted(*key, len(out.grant.blocks) + out.grant.cached, out.grant.cached))
            case Action.TELL_REVOKED:
                desk.outbox.append(Revoked("sender", *key))
            case Action.TELL_COMMITTED:
                desk.totals.committed += 1
                desk.outbox.append(Committed(*key))
            case Action.TELL_ABORTED:
                desk.totals.aborted += 1
                desk.outbox.append(Aborted("sender", *key, out.cause, out.reason, out.retry))
            case Action.FENCE:
                if out.connection is not None:
                    desk.fence(out.connection)
            case _:
                self._send(key, out, action)

    def _send(self, key: Key, out: Sending, action: Action) -> None:
        peers, number = self._desk.peers, out.connection
        if number is None or not peers.trusted(number):
            return
        epoch = peers.epoch(number)
        match action:
            case Action.SEND_REVOKED:
                peers.send(number, handoff.Revoked(epoch, *key, out.last_serial))
            case Action.SEND_FINAL:
                assert out.final is not None
                held = self._desk.clock() - out.finished_at
                peers.send(number, msgspec.structs.replace(out.final, held=held))
            case Action.SEND_ABORT:
                peers.send(number, handoff.Abort(epoch, *key, out.reason, out.retry))
            case Action.SEND_ACK:
                peers.send(number, handoff.AbortAck(epoch, *key))
            case _:
                raise AssertionError(f"a sender does not {action.value}")
