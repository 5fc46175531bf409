"""The core's interface to hand-offs: calls in, polled events out, all in the core's own thread.

A sender calls `expect`, then, after `Granted`, `push` (as blocks get complete) and `finish`; a receiver calls `grant`.
What happens between is in `session` (the table), `sender` and `receiver` (its two sides), `registry` (what both do
alike) and `peers` (connections).
"""

from collections.abc import Callable, Collection, Sequence
from itertools import chain

from legato_engine.transfer.channels import Channels
from legato_engine.transfer.checksum import ArenaMemory
from legato_engine.transfer.context import TransferContext
from legato_engine.transfer.counts import Counts
from legato_engine.transfer.device import LOOK, DeviceEvent, DirectBlocks
from legato_engine.transfer.events import Cause, TransferEvent
from legato_engine.transfer.link import Connected, Fenced, Link, LinkEvent, PeerDown, PutDone, PutFailed, Received
from legato_engine.transfer.peers import Peers
from legato_engine.transfer.receiver import Receiver
from legato_engine.transfer.seals import prove
from legato_engine.transfer.sender import Sender
from legato_engine.transfer.session import IllegalSessionEvent
from legato_engine.transfer.staging import Staging
from legato_protocol import handoff
from legato_protocol.stream import Peer, TokenItem

_LEASES_TO_GREET = 4
_TO_SENDER = handoff.Grant | handoff.Revoke | handoff.Commit
_TO_RECEIVER = handoff.Written | handoff.Final | handoff.Revoked


class TransferAgent:
    """Both sides of all hand-offs of one worker.

    Not thread-safe: every call comes from the thread of the core's loop. No call blocks. Events come from `poll`
    only, never from inside another call. Calls about a session that has ended meanwhile do nothing: its event is
    waiting in `poll`. Once the link itself has failed, any call may raise LinkError.
    """

    def __init__(
        self,
        link: Link,
        memory: ArenaMemory,
        *,
        worker: str,
        epoch: str,
        kv_revision: str,
        layout: str,
        block_size: int,
        token: str,
        checksum: bool = True,
        lease: float = 10.0,
        clock: Callable[[], float],
        channels: Channels | None = None,
        staging: Staging | None = None,
        direct: DirectBlocks | None = None,
    ) -> None:
        """`link` must have the memory of `memory` registered, or with `staging` its slots; `block_size` is in tokens.
        An arena that only a device reaches needs `staging`, or `direct` and a link for such memory; ValueError without.

        `lease` is how many seconds of a peer's silence end a session; a new connection has four until the peer has said
        who it is. `clock` is `time.monotonic` or a test's. Without `channels`, control messages are in the clear.
        """
        if not (memory.on_host or staging or direct):
            raise ValueError("memory of a device would be taken for the host's: it needs staging or direct access")
        self._link = link
        self._hello = handoff.PeerHello(
            worker=worker,
            epoch=epoch,
            kv_revision=kv_revision,
            layout=layout,
            address=link.address,
            arena=staging.copies.address if staging else memory.address,
            rkey=link.rkey,
            proof=prove(token, worker, epoch),
            oldest=handoff.OLDEST,
        )
        self._peers = Peers(link, self._hello, token, _LEASES_TO_GREET * lease, clock, channels)
        self._context = TransferContext(
            link, self._peers, memory, block_size, epoch, checksum, lease, clock, staging, direct
        )
        self._sender = Sender(self._context)
        self._receiver = Receiver(self._context)
        self._registries = (self._sender.sessions, self._receiver.sessions)

    def trust(self, tokens: Sequence[str]) -> None:
        """From now on show the first of these, and take any from peers. Connections that there are stay as they are."""
        self._peers.trust(tokens)

    @property
    def address(self) -> bytes:
        """For `Hello.address`."""
        return self._link.address

    @property
    def transport(self) -> str:
        """For `Hello.transport`."""
        return self._link.transport

    def fileno(self) -> int:
        """Readable while the link has something for `poll`."""
        return self._link.fileno()

    def next_timer(self) -> float | None:
        """Seconds until `poll` has something to do even if nothing arrives (≥ 0); None when nothing is due."""
        if self._context.outbox:
            return 0.0
        due = min(
            chain(self._sender.sessions.timers(), self._receiver.sessions.timers(), self._peers.timers()), default=None
        )
        left = None if due is None else max(0.0, due - self._context.clock())
        if self._sender.waiting or self._receiver.waiting:
            return LOOK if left is None else min(LOOK, left)
        return left

    def stepped(self, event: DeviceEvent | None) -> None:
        """The core has processed a step; the device has ended it, and all before it, once `event` is done (None: now).

        Blocks that are pushed from now on are read after that, and those that are granted are written to after that.
        """
        self._context.last_step = event

    def expect(self, room: int, attempt: int, peer: Peer, root: bytes) -> None:
        """This worker will send `room` to `peer`. `root` is the parent of the sequence's first block hash.

        `Granted` follows once the receiver has room, perhaps at the next poll. A room that stays without a grant waits
        until `abort`: the caller owns the request's deadline. Blocks need no pinning before `Granted`.
        """
        self._sender.expect(room, attempt, peer, root)

    def hold(self, keys: Collection[tuple[int, int]]) -> None:
        """Rooms and attempts that will be expected, and are not yet: their grants are kept alive. All of them, in every
        turn in which there are any, and in the first without."""
        self._sender.hold(keys)

    def push(self, room: int, first: int, blocks: Sequence[int], hashes: Sequence[bytes]) -> None:
        """Sends complete blocks: sequence blocks `first, first+1, …` lie in `blocks` of the own arena.

        Only after `Granted`, and from block 0 on again after `GrantRevoked`. `hashes[i]` is the block hash of
        `blocks[i]`. Blocks below the grant's `cached` are skipped. Blocks must be pushed in order, each once, and stay
        unchanged until `Committed`, `Aborted` or `GrantRevoked`. Raises ValueError for blocks out of order or beyond
        the grant.
        """
        self._sender.push(room, first, blocks, hashes)

    def finish(
        self, room: int, token_ids: bytes, computed: int, tokens: Sequence[TokenItem], partial: int | None = None
    ) -> None:
        """All full blocks were pushed: sends the rest, and `Final` after everything is written.

        `partial` is the own arena's block that holds the last, incomplete block of the `computed` tokens (None when
        `computed` is a multiple of the block size). For `token_ids` and `tokens` see `handoff.Final`. Raises
        ValueError if that contradicts what was pushed.
        """
        self._sender.finish(room, token_ids, computed, tokens, partial)

    def unwritten(self, room: int) -> int:
        """How many pushed blocks are not in the receiver's memory yet: what a sequence that stops now waits for."""
        return self._sender.unwritten(room)

    def grant(self, room: int, attempt: int, peer: Peer, table: Sequence[int], cached: int, root: bytes) -> None:
        """Lets `peer` write the sequence of `room` into the own arena.

        `table` is the sequence's whole block table; its first `cached` blocks are here already, nobody writes to them.
        ValueError for a table that cannot be one: a block twice or not in the arena, or more cached than there are.
        The blocks are the session's until `Arrived` (then they are the sequence's), `GrantRevoked` or `Released`.
        `root` is the parent of the sequence's first block hash: what arrives must belong to it.
        """
        self._receiver.grant(room, attempt, peer, table, cached, root)

    def revoke(self, room: int) -> None:
        """Asks for the grant back. `GrantRevoked` follows if nothing was put yet; otherwise the session goes on."""
        self._receiver.revoke(room)

    def abort(self, room: int, reason: str) -> None:
        """Ends every unfinished session of this room (cancel, deadline). Rooms that are not known are no error.

        `Aborted` follows: at once for a receiver, and for a sender when no put reads its blocks any more.
        """
        self._sender.cancel(room, reason)
        self._receiver.cancel(room, reason)

    def poll(self) -> list[TransferEvent]:
        """Handles what arrived and what is due by the clock; returns what the core has to know, oldest first."""
        for event in self._link.poll():
            self._handle(event)
        self._sender.advance()
        self._receiver.advance()
        now = self._context.clock()
        self._peers.tick(now)
        for sessions in self._registries:
            sessions.tick(now)
        events = self._context.outbox.copy()
        self._context.outbox.clear()
        return events

    def counts(self) -> Counts:
        totals = self._context.totals
        return Counts(
            sending=len(self._sender.sessions.active()),
            receiving=len(self._receiver.sessions.active()),
            quarantined_blocks=self._receiver.quarantined(),
            grants_without_slots=self._receiver.without_slots(),
            committed=totals.committed,
            aborted=totals.aborted,
            fences=totals.fences,
            tls_peers=self._peers.count(secured=True),
            plain_peers=self._peers.count(secured=False),
            refused_peers=self._peers.refused,
            refused_plain=self._peers.refused_plain,
            failed_tls=self._peers.failed_tls,
            failed_in_a_row=self._peers.failed_in_a_row,
            bad_messages=self._peers.bad_messages + totals.bad_messages,
            unknown_epochs=totals.unknown_epochs,
            corrupt_blocks=totals.corrupt_blocks,
            bytes_sent=totals.bytes_sent,
            bytes_received=totals.bytes_received,
        )

    def pending(self) -> int:
        """How many sessions have not ended, those that wait for `Released` included: at 0 a drained worker may stop."""
        return sum(len(sessions.active()) for sessions in self._registries)

    def check_integrity(self) -> None:
        """Raises AssertionError for a block granted twice or a put without a session."""
        self._sender.check_integrity()
        self._receiver.check_integrity()

    def close(self) -> None:
        """Closes the link. Peers see this worker as gone; whoever wants more than that aborts and polls first."""
        self._link.close()

    # inside

    def _handle(self, event: LinkEvent) -> None:
        match event:
            case Received(connection, data):
                self._receive(connection, data)
            case PutDone() | PutFailed():
                self._sender.put_ended(event)
            case Connected(connection, accepted):
                self._peers.connected(connection, accepted)
            case PeerDown(connection, reason):  # one that is refused may close its end before this one is closed
                self._ended(connection, "peer_died", self._peers.refusal(connection) or reason)
            case Fenced(connection):
                refusal = self._peers.refusal(connection)  # whoever is there now is not the one that was meant
                cause: Cause = "peer_died" if refusal else "peer_silent"
                self._ended(connection, cause, refusal or "its endpoint was closed here")

    def _receive(self, connection: int, data: bytes) -> None:
        message = self._peers.receive(connection, data)
        if isinstance(message, handoff.PeerHello):
            self._receiver.advance()
        elif message is not None:
            try:
                self._dispatch(connection, message)
            except IllegalSessionEvent:
                self._context.totals.bad_messages += 1

    def _dispatch(self, connection: int, message: handoff.SessionMessage) -> None:
        """The epoch is the receiver's: it says which side this worker has in the session."""
        theirs, ours = message.epoch == self._peers.epoch(connection), message.epoch == self._context.epoch
        if not (theirs or ours):
            self._context.totals.unknown_epochs += 1
        elif isinstance(message, _TO_RECEIVER if theirs else _TO_SENDER):
            self._context.totals.bad_messages += 1
        elif theirs:
            self._sender.receive(connection, message)
        else:
            self._receiver.receive(connection, message)

    def _ended(self, connection: int, cause: Cause, reason: str) -> None:
        for sessions in self._registries:
            sessions.connection_ended(connection, cause, reason)
        self._peers.forget(connection, reason)
