"""The sending side: puts pushed blocks, accepts and returns grants, and sends the last message."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from legato_engine.transfer.blocks.checksum import bind, index_of
from legato_engine.transfer.blocks.put_queue import FromArena, FromDevice, FromRing, PutQueue, PutSource, PutSources
from legato_engine.transfer.blocks.puts import BlockPut
from legato_engine.transfer.blocks.spans import WindowBlocks
from legato_engine.transfer.link import PutDone, PutFailed, PutSpan
from legato_engine.transfer.session.context import TransferContext
from legato_engine.transfer.session.events import BlocksAsked, Committed, Granted
from legato_engine.transfer.session.lifecycle import Action, SessionEvent, SessionState
from legato_engine.transfer.session.registry import Key, SessionFailure, SessionRecord, SessionRegistry
from legato_protocol.wire import block_hash, handoff
from legato_protocol.wire.stream import Peer, TokenItem

_REVOCABLE = frozenset(
    (SessionState.UNKNOWN, SessionState.PARKED, SessionState.WAITING, SessionState.GRANTED, SessionState.ABORTED)
)  # nothing was put before a revocation in these states, and nothing will be


@dataclass(slots=True)
class OutgoingSession(SessionRecord):
    """One hand-off that this worker sends."""

    peer: Peer | None = None
    root: bytes = b""
    current: bool = False  # the latest expected attempt of its room, to which calls with only a room refer
    grant: handoff.Grant | None = None
    last_serial: int = 0  # of returned grants
    next_block: int = 0  # the sequence's block that the next `push` has to begin with
    parent: bytes = b""  # hash of the last pushed block
    puts: dict[int, BlockPut] = field(default_factory=dict)  # waiting or in flight, by tag
    final: handoff.Final | None = None
    finished_at: float = 0.0  # when the core called `finish`

    @property
    def busy(self) -> bool:
        return bool(self.puts)


class Sender:
    """All outgoing hand-offs of a worker."""

    def __init__(self, context: TransferContext) -> None:
        self._context = context
        self.sessions = SessionRegistry("sender", context, OutgoingSession, self._perform)
        self._by_tag: dict[int, OutgoingSession] = {}
        self._next_tag = 0
        sources = PutSources(_source(context), _readable(context, self.on_put_ended))
        self._queue = PutQueue(sources, self._is_wanted, self._drop)

    @property
    def waiting(self) -> bool:
        """True if `advance` has to be called again soon."""
        return self._queue.waiting

    def advance(self) -> None:
        """Continues puts that waited for the device."""
        self._queue.advance()

    # calls

    def expect(self, room: int, attempt: int, peer: Peer, root: bytes) -> None:
        out = self.sessions.open((room, attempt))
        if out.state is SessionState.PARKED and not self._is_from(out, peer):
            foreign = SessionFailure("refused", "the grant came from another worker or epoch")
            self.sessions.fail(out, SessionEvent.CANCEL, foreign)
            out = self.sessions.restart((room, attempt))
        for other in self.sessions.in_room(room):
            other.current = other is out
        out.peer, out.root, out.parent = peer, root, root
        self.sessions.step(out, SessionEvent.EXPECT)

    def hold(self, keys: Collection[Key]) -> None:
        for out in self.sessions:
            out.held = out.key in keys

    def push(
        self,
        room: int,
        first: int,
        blocks: Sequence[int],
        hashes: Sequence[bytes],
        windows: Sequence[WindowBlocks] = (),
    ) -> None:
        out = self._granted(room)
        if out is None or not blocks:
            return
        assert out.grant is not None
        granted = out.grant.cached + len(out.grant.blocks)
        if first != out.next_block or len(blocks) != len(hashes) or out.final is not None:
            raise ValueError(f"blocks from {first} pushed where {out.next_block} is next, with {len(hashes)} hashes")
        if first + len(blocks) > granted:
            raise ValueError(f"blocks {first} to {first + len(blocks) - 1} pushed with a grant for {granted} blocks")
        out.next_block += len(blocks)
        out.parent = hashes[-1]
        granted_windows = [window.first for window in out.grant.windows]
        tables = [(0, WindowBlocks(first, blocks)), *zip(granted_windows, windows, strict=True)]
        for group, (granted, table) in enumerate(tables):
            wanted = table.since(max(first, out.grant.cached, granted)).before(first + len(blocks))
            if wanted.blocks:
                self._put(out, out.grant, group, wanted, hashes[wanted.first - first :])

    def finish(
        self,
        room: int,
        token_ids: bytes,
        computed: int,
        tokens: Sequence[TokenItem],
        partial: int | None,
        windows: Sequence[WindowBlocks] = (),
    ) -> None:
        out = self._granted(room)
        if out is None:
            return
        rest = computed % self._context.block_size
        full = computed // self._context.block_size
        if out.next_block != full or (partial is None) != (rest == 0) or computed * 4 > len(token_ids):
            raise ValueError(f"finished at {computed} tokens with {out.next_block} full blocks, partial {partial}")
        if partial is not None:
            tail = token_ids[(computed - rest) * 4 : computed * 4]
            self.push(room, full, (partial,), (block_hash.child(out.parent, tail),), windows)
        out.finished_at = self._context.clock()
        out.final = handoff.Final(*out.name, token_ids, computed, tuple(tokens), out.next_block)
        self._settle(out)

    def lend(
        self,
        room: int,
        attempt: int,
        blocks: Sequence[int],
        hashes: Sequence[bytes],
        windows: Sequence[WindowBlocks] = (),
    ) -> bool:
        """Sends cached blocks that a parked grant asks for, from its first one on, and `Final`; False if it is over."""
        out = self.sessions.get((room, attempt))
        if out is None or out.state is not SessionState.PARKED or out.grant is None or out.connection is None:
            return False
        first, end = out.grant.cached, out.grant.cached + len(blocks)
        self.expect(room, attempt, Peer(*self._context.peers.identity(out.connection), b""), b"")
        if not out.renewed:
            return False
        out.next_block = first
        self.push(room, first, blocks, hashes, windows)
        out.final = handoff.Final(*out.name, b"", end * self._context.block_size, (), end)
        out.finished_at = self._context.clock()
        self._settle(out)
        return True

    def unwritten(self, room: int) -> int:
        out = self._granted(room)
        return sum(len(put.blocks) for put in out.puts.values()) if out else 0

    def cancel(self, room: int, reason: str) -> None:
        for out in self.sessions.in_room(room):
            if not out.ended and out.state is not SessionState.UNKNOWN:
                self._fail(out, SessionEvent.CANCEL, SessionFailure("cancelled", reason, wanted=False))

    # messages and link events

    def receive(self, connection: int, message: handoff.SessionMessage) -> None:
        """Raises IllegalSessionEvent for a message that the table does not know here."""
        out = self.sessions.open((message.room, message.attempt))
        if out.connection not in (None, connection):
            return  # a late message of an earlier connection
        if self._is_foreign(out, connection):
            if isinstance(message, handoff.Abort):  # this session writes nothing there
                self._context.peers.send(connection, handoff.AbortAck(message.epoch, *out.key))
            return
        match message:
            case handoff.Grant():
                self._take_grant(out, connection, message)
            case handoff.Revoke(serial=serial):
                if out.grant is None or serial >= out.grant.serial:
                    self._return_grant(out, connection, serial)
            case handoff.Abort(reason=reason, wanted=wanted):
                self._bind(out, connection)
                self._fail(out, SessionEvent.GOT_ABORT, SessionFailure("refused", reason, wanted))
            case handoff.Commit():
                self.sessions.step(out, SessionEvent.GOT_COMMIT)
            case handoff.AbortAck():
                self.sessions.step(out, SessionEvent.GOT_ACK)
            case _:
                self.sessions.step(out, SessionEvent.GOT_RENEW)
        if out.renewed:
            self.sessions.extend_lease(out)

    def on_put_ended(self, event: PutDone | PutFailed) -> None:
        out = self._by_tag.pop(event.tag, None)
        if out is None:
            return
        put = out.puts.pop(event.tag)
        self._queue.release(put)
        if isinstance(event, PutFailed):
            self._fail(out, SessionEvent.PUT_FAILED, SessionFailure("broken", f"could not write: {event.reason}"))
        elif out.state is SessionState.PUSHING:
            now = self._context.clock()
            if not put.pulled:
                self._context.put_rate.measure(len(put.blocks), now - put.began, now)
            self._announce(out, put)
        self._settle(out)

    def check_integrity(self) -> None:
        """Raises AssertionError for a put without a live session."""
        in_flight = {tag for out in self.sessions for tag in out.puts}
        assert in_flight == set(self._by_tag), f"puts {in_flight} belong to sessions, {set(self._by_tag)} are in flight"
        for out in self.sessions:
            assert not (out.ended and out.puts) or out.late, f"{out.key} has ended with puts in flight"

    # internals

    def _granted(self, room: int) -> OutgoingSession | None:
        """The room's current attempt, if it has a grant and is not ending."""
        return next((out for out in self.sessions.in_room(room) if out.current and out.renewed), None)

    def _is_foreign(self, out: OutgoingSession, connection: int) -> bool:
        """True if the connection's worker or epoch is not the one that the live session is for."""
        return out.peer is not None and not out.ended and not self._context.peers.leads_to(connection, out.peer)

    def _is_from(self, out: OutgoingSession, peer: Peer) -> bool:
        peers, number = self._context.peers, out.connection
        return number is not None and peers.is_trusted(number) and peers.leads_to(number, peer)

    def _bind(self, out: OutgoingSession, connection: int) -> None:
        """Assigns the connection, and its peer's arena, to the session."""
        out.connection, out.epoch = connection, self._context.peers.epoch(connection)

    def _take_grant(self, out: OutgoingSession, connection: int, grant: handoff.Grant) -> None:
        if out.ended:
            self._bind(out, connection)
            self.sessions.step(out, SessionEvent.GOT_GRANT)
            return
        if grant.serial <= out.last_serial or out.grant is not None:
            return
        readable = bool(self._context.node.neighbours.node)
        asked = len(grant.wanted) in (0, len(grant.blocks) * block_hash.HASH_BYTES)
        if len(grant.windows) != len(self._context.first_blocks(0)) or (grant.pulls and not readable) or not asked:
            self._context.totals.bad_messages += 1
            return
        out.grant = grant
        self._bind(out, connection)
        self.sessions.begin_lease(out)
        self.sessions.step(out, SessionEvent.GOT_GRANT)
        if grant.wanted and out.state is SessionState.PARKED:
            hashes, firsts = tuple(block_hash.split(grant.wanted)), tuple([each.first for each in grant.windows])
            self._context.outbox.append(BlocksAsked(*out.key, grant.cached, hashes, firsts))

    def _return_grant(self, out: OutgoingSession, connection: int, serial: int) -> None:
        if out.state in _REVOCABLE:
            out.last_serial = max(out.last_serial, serial)
            self._bind(out, connection)
        self.sessions.step(out, SessionEvent.GOT_REVOKE)
        if out.state in (SessionState.UNKNOWN, SessionState.WAITING):
            out.grant, out.connection, out.next_block, out.parent = None, None, 0, out.root
            out.due = self._context.clock() + self._context.ended_retention

    def _put(
        self, out: OutgoingSession, grant: handoff.Grant, group: int, wanted: WindowBlocks, hashes: Sequence[bytes]
    ) -> None:
        """Queues puts of blocks of a group to their places in the receiver's memory."""
        assert out.connection is not None
        context, first, blocks = self._context, wanted.first, wanted.blocks
        window = grant.windows[group - 1] if group else handoff.GrantedWindow(0, grant.blocks)
        targets = window.blocks[first - max(grant.cached, window.first) :][: len(blocks)]
        arena = context.peers.arena(out.connection)
        self.sessions.step(out, SessionEvent.PUT)
        size = (None if grant.pulls else self._queue.largest) or len(blocks)
        for at in range(0, len(blocks), size):
            part = slice(at, at + size)
            self._next_tag += 1
            put = BlockPut(
                self._next_tag,
                out.connection,
                first + at,
                blocks[part],
                hashes[part],
                targets[part],
                arena,
                context.last_step,
                group,
                grant.pulls,
                began=context.clock(),
            )
            self._by_tag[put.tag] = out
            out.puts[put.tag] = put
            self._queue.add(put)

    def _is_wanted(self, put: BlockPut) -> bool:
        return self._by_tag[put.tag].state is SessionState.PUSHING

    def _drop(self, put: BlockPut) -> None:
        """Drops a put of which nothing was read or written."""
        out = self._by_tag.pop(put.tag)
        del out.puts[put.tag]
        self._settle(out)

    def _announce(self, out: OutgoingSession, put: BlockPut) -> None:
        room, count = out.key[0], len(put.blocks)
        self._context.totals.bytes_sent += count * self._context.memory.block_bytes
        first = index_of(put.group, put.first)
        checksums = tuple(bind(put.sums[i], room, first + i, put.hashes[i]) for i in range(count))
        sources = tuple(put.blocks) if put.pulled else ()
        self.sessions.send(out, handoff.Written(*out.name, put.first, checksums, put.group, sources))

    def _settle(self, out: OutgoingSession) -> None:
        """Takes the step that waited for the end of the last put, if that has ended."""
        if out.puts:
            return
        self.sessions.report_late(out)
        if out.state in (SessionState.DRAINING, SessionState.ANSWERING, SessionState.FENCING):
            self.sessions.step(out, SessionEvent.DRAINED)
        elif out.final is not None and out.renewed:
            self.sessions.step(out, SessionEvent.FINISH)
            self.sessions.extend_lease(out)

    def _fail(self, out: OutgoingSession, event: SessionEvent, failure: SessionFailure) -> None:
        self.sessions.fail(out, event, failure)
        if out.state in (SessionState.DRAINING, SessionState.ANSWERING):
            self._settle(out)

    def _perform(self, out: OutgoingSession, action: Action) -> None:
        context = self._context
        match action:
            case Action.REPORT_GRANTED:
                assert out.grant is not None
                blocks, firsts = len(out.grant.blocks) + out.grant.cached, tuple([w.first for w in out.grant.windows])
                context.outbox.append(Granted(*out.key, blocks, out.grant.cached, firsts))
            case Action.REPORT_COMMITTED:
                context.totals.committed += 1
                context.outbox.append(Committed(*out.key))
            case Action.SEND_REVOKED:
                self.sessions.send(out, handoff.Revoked(*out.name, out.last_serial))
            case Action.SEND_FINAL:
                assert out.final is not None
                held = context.clock() - out.finished_at
                self.sessions.send(out, msgspec.structs.replace(out.final, held=held))
            case Action.SEND_ABORT:
                assert out.failure is not None
                self.sessions.send(out, handoff.Abort(*out.name, out.failure.reason, out.failure.wanted))
            case _:
                raise AssertionError(f"a sender does not {action.value}")


class _Readable:
    """Implements `Puts` for blocks that stay where they are: the receiver copies them."""

    def __init__(self, ended: Callable[[PutDone], None]) -> None:
        self._ended = ended

    def put(self, connection: int, spans: Sequence[PutSpan], tag: int) -> None:
        self._ended(PutDone(connection, tag))


def _readable(context: TransferContext, ended: Callable[[PutDone], None]) -> PutSource:
    readable, memory = _Readable(ended), context.memory
    if context.node.sums is not None:
        return FromDevice(readable, memory, context.node.sums, context.checksum)
    return FromArena(readable, memory, context.checksum)


def _source(context: TransferContext) -> PutSource:
    link, memory, checksum = context.link, context.memory, context.checksum
    if context.staging is not None:
        return FromRing(link, context.staging, memory.block_bytes, checksum)
    if context.direct is not None:
        return FromDevice(link, memory, context.direct, checksum)
    return FromArena(link, memory, checksum)
