"""The core's interface to hand-offs: calls in, polled events out, all in the core's own thread.

A sender calls `expect`, then, after `Granted`, `push` (as blocks become complete) and `finish`; a receiver calls
`grant`. For cached blocks without a sequence, the receiver calls `fetch`, and the sender `lend` after `BlocksAsked`.
The protocol is in `session`: `lifecycle` (the table), `sender` and `receiver` (its two sides), `registry` (common to
both). `connections.peers` has the connections.
"""

import select
from collections.abc import Callable, Collection, Sequence
from itertools import chain

from legato_engine.transfer.blocks.spans import WindowBlocks
from legato_engine.transfer.connections.peers import Peers
from legato_engine.transfer.connections.seals import prove
from legato_engine.transfer.device.interface import POLL_INTERVAL, DeviceEvent
from legato_engine.transfer.identity import TransferArena, TransferIdentity, TransferPolicy
from legato_engine.transfer.link import Connected, Fenced, Link, LinkEvent, PeerDown, PutDone, PutFailed, Received
from legato_engine.transfer.node.interface import Neighbours
from legato_engine.transfer.session.context import TransferContext
from legato_engine.transfer.session.counts import Counts
from legato_engine.transfer.session.events import Cause, TransferEvent
from legato_engine.transfer.session.lifecycle import IllegalSessionEvent
from legato_engine.transfer.session.receiver import Receiver
from legato_engine.transfer.session.sender import Sender
from legato_protocol.wire import handoff
from legato_protocol.wire.stream import Peer, TokenItem

_LEASES_TO_GREET = 4
_TO_SENDER = handoff.Grant | handoff.Revoke | handoff.Commit
_TO_RECEIVER = handoff.Written | handoff.Final | handoff.Revoked


class TransferAgent:
    """Both sides of all hand-offs of one worker.

    Not thread-safe: the core's loop makes every call. No call blocks. Only `poll` returns events. Calls for a session
    that has ended are ignored: the next `poll` reports its end. Once the link itself has failed, any call may raise
    LinkError.
    """

    def __init__(
        self,
        link: Link,
        arena: TransferArena,
        identity: TransferIdentity,
        clock: Callable[[], float],
        policy: TransferPolicy | None = None,
    ) -> None:
        """`clock` is `time.monotonic` or a test's. On a new connection, the peer has four leases to identify itself."""
        policy = policy or TransferPolicy()
        self._link = link
        self._hello = handoff.PeerHello(
            worker=identity.worker,
            epoch=identity.epoch,
            kv_revision=identity.kv_revision,
            layout=identity.layout,
            address=link.address,
            arena=arena.registered,
            rkey=link.rkey,
            proof=prove(identity.token, identity.worker, identity.epoch),
            oldest=handoff.OLDEST,
            node=arena.node.neighbours.node if policy.checksum else "",
        )
        patience = _LEASES_TO_GREET * policy.lease
        self._peers = Peers(link, self._hello, identity.token, patience, clock, identity.channels)
        self._neighbours = arena.node.neighbours
        self._neighbours.trust((identity.token,))
        self._pulls = arena.node.pulls
        self._readable = _either(link, self._neighbours)
        self._context = TransferContext(
            link=link,
            peers=self._peers,
            memory=arena.memory,
            block_size=arena.block_size,
            epoch=identity.epoch,
            checksum=policy.checksum,
            lease=policy.lease,
            clock=clock,
            staging=arena.staging,
            direct=arena.direct,
            first_blocks=arena.first_blocks,
            node=arena.node,
        )
        self._sender = Sender(self._context)
        self._receiver = Receiver(self._context)
        self._registries = (self._sender.sessions, self._receiver.sessions)

    def trust(self, tokens: Sequence[str]) -> None:
        """Shows the first of these tokens to peers from now on, and accepts any. Existing connections are kept."""
        self._peers.trust(tokens)
        self._neighbours.trust(tokens)

    @property
    def address(self) -> bytes:
        """The value of `Hello.address`."""
        return self._link.address

    @property
    def transport(self) -> str:
        """The value of `Hello.transport`."""
        return self._link.transport

    def fileno(self) -> int:
        """A descriptor that is readable while the link or a neighbour has something for `poll`."""
        return self._readable.fileno()

    def next_timer(self) -> float | None:
        """Seconds (≥ 0) until `poll` has work even if nothing arrives; None if nothing is due."""
        if self._context.outbox:
            return 0.0
        due = min(chain(*(each.timers() for each in (*self._registries, self._peers, self._neighbours))), default=None)
        left = None if due is None else max(0.0, due - self._context.clock())
        if self._sender.waiting or self._receiver.waiting:
            return POLL_INTERVAL if left is None else min(POLL_INTERVAL, left)
        return left

    def after_step(self, event: DeviceEvent | None) -> None:
        """The core has processed a step, which the device has finished once `event` is done (None: now).

        Blocks that are pushed or granted from now on are read or written only after that.
        """
        self._context.last_step = event

    def expect(self, room: int, attempt: int, peer: Peer, root: bytes) -> None:
        """This worker will send `room` to `peer`. `root` is the parent of the sequence's first block hash.

        `Granted` follows once the receiver has room, at the next poll or later. A room without a grant waits until
        `abort`: the caller checks the request's deadline. Blocks may change before `Granted`.
        """
        self._sender.expect(room, attempt, peer, root)

    def hold(self, keys: Collection[tuple[int, int]]) -> None:
        """Keeps grants alive for rooms and attempts that the core will expect later.

        The core passes all of them in every iteration in which there are any, and in the first without.
        """
        self._sender.hold(keys)

    def push(
        self,
        room: int,
        first: int,
        blocks: Sequence[int],
        hashes: Sequence[bytes],
        windows: Sequence[WindowBlocks] = (),
    ) -> None:
        """Sends complete blocks: `blocks` of this worker's arena hold the sequence's `first, first+1, …`.

        Called after `Granted`, and again from block 0 on after `GrantRevoked`. `hashes[i]` is the block hash of
        `blocks[i]`. Blocks below the grant's `cached` are skipped. Blocks must be pushed once each, in order, and stay
        unchanged until `Committed`, `Aborted` or `GrantRevoked`. Raises ValueError for blocks out of order or beyond
        the grant. Of `windows`, the tables of groups with a window, blocks of the same numbers are sent that were
        granted.
        """
        self._sender.push(room, first, blocks, hashes, windows)

    def finish(
        self,
        room: int,
        token_ids: bytes,
        computed: int,
        tokens: Sequence[TokenItem],
        partial: int | None = None,
        windows: Sequence[WindowBlocks] = (),
    ) -> None:
        """Sends the rest after all full blocks were pushed, and `Final` once everything is written.

        `partial` is the block of this worker's arena with the incomplete last block of the `computed` tokens (None if
        `computed` is a multiple of the block size). For `token_ids` and `tokens` see `handoff.Final`. Raises ValueError
        if this contradicts the pushed blocks.
        """
        self._sender.finish(room, token_ids, computed, tokens, partial, windows)

    def unwritten(self, room: int) -> int:
        """Number of pushed blocks that are not in the receiver's memory yet."""
        return self._sender.unwritten(room)

    def grant(
        self,
        room: int,
        attempt: int,
        peer: Peer,
        table: Sequence[int],
        cached: int,
        root: bytes,
        windows: Sequence[WindowBlocks] = (),
    ) -> None:
        """Lets `peer` write the sequence of `room` into this worker's arena.

        `table` is the sequence's whole block table; its first `cached` blocks are complete and not written to.
        ValueError for an invalid table: a block twice or outside of the arena, or more cached blocks than there are.
        The blocks belong to the session until `Arrived` (then to the sequence), `GrantRevoked` or `Released`.
        `root` is the parent of the sequence's first block hash, against which received blocks are verified. `windows`
        are the tables of groups with a window, whose blocks before number `cached` are complete, too.
        """
        self._receiver.grant(room, attempt, peer, table, cached, root, windows)

    def fetch(
        self,
        room: int,
        attempt: int,
        peer: Peer,
        table: Sequence[int],
        cached: int,
        hashes: Sequence[bytes],
        windows: Sequence[WindowBlocks] = (),
    ) -> None:
        """Asks `peer` for its cached blocks of these hashes, which it may write into this worker's arena as `grant`
        lets it. `Arrived` reports how many it had; `Aborted` with cause "refused" that it had none."""
        self._receiver.grant(room, attempt, peer, table, cached, b"", windows, hashes)

    def lend(
        self,
        room: int,
        attempt: int,
        blocks: Sequence[int],
        hashes: Sequence[bytes],
        windows: Sequence[WindowBlocks] = (),
    ) -> bool:
        """After `BlocksAsked`: sends cached blocks, from the first one asked for on.

        They must stay unchanged until `Committed` or `Aborted`. Returns False if the session is over already.
        """
        return self._sender.lend(room, attempt, blocks, hashes, windows)

    def revoke(self, room: int) -> None:
        """Asks the sender to return the grant. `GrantRevoked` follows if nothing was put; else the session goes on."""
        self._receiver.revoke(room)

    def abort(self, room: int, reason: str) -> None:
        """Ends every unfinished session of this room (cancel, deadline). Unknown rooms are ignored.

        `Aborted` follows: immediately for a receiver, and for a sender once no put reads its blocks any more.
        """
        self._sender.cancel(room, reason)
        self._receiver.cancel(room, reason)

    def poll(self) -> list[TransferEvent]:
        """Handles received messages and timers that are due. Returns events for the core, oldest first."""
        for event in self._link.poll():
            self._handle(event)
        self._neighbours.poll()
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
            bytes_pulled=totals.bytes_pulled,
            readable_peers=self._neighbours.readable,
            unreadable_peers=self._neighbours.unreadable,
        )

    def put_rate(self) -> float:
        """Blocks per second that recent puts moved; 0 if none was measured."""
        return self._context.put_rate.per_second(self._context.clock())

    def pending(self) -> int:
        """Number of unfinished sessions, including those before `Released`: at 0 a drained worker may stop."""
        return sum(len(sessions.active()) for sessions in self._registries)

    def check_integrity(self) -> None:
        """Raises AssertionError for a block granted twice or a put without a session."""
        self._sender.check_integrity()
        self._receiver.check_integrity()

    def close(self) -> None:
        """Closes the link. Peers see a lost connection; to end sessions cleanly, abort and poll first."""
        self._link.close()
        self._neighbours.close()
        self._pulls.close()

    # internals

    def _handle(self, event: LinkEvent) -> None:
        match event:
            case Received(connection, data):
                self._receive(connection, data)
            case PutDone() | PutFailed():
                self._sender.on_put_ended(event)
            case Connected(connection, accepted):
                self._peers.on_connected(connection, accepted)
            case PeerDown(connection, reason):  # a refused peer may close its end first
                self._end_connection(connection, "peer_died", self._peers.refusal(connection) or reason)
            case Fenced(connection):
                refusal = self._peers.refusal(connection)  # a refused peer is not the expected worker, so that is lost
                cause: Cause = "peer_died" if refusal else "peer_silent"
                self._end_connection(connection, cause, refusal or "its endpoint was closed here")

    def _receive(self, connection: int, data: bytes) -> None:
        message = self._peers.receive(connection, data)
        if isinstance(message, handoff.PeerHello):
            self._neighbours.meet(connection, message, self._peers.token(connection))
            self._receiver.advance()
        elif message is not None:
            try:
                self._dispatch(connection, message)
            except IllegalSessionEvent:
                self._context.totals.bad_messages += 1

    def _dispatch(self, connection: int, message: handoff.SessionMessage) -> None:
        """Passes the message to the sender or receiver side: the message's epoch is the receiving worker's."""
        theirs, ours = message.epoch == self._peers.epoch(connection), message.epoch == self._context.epoch
        if not (theirs or ours):
            self._context.totals.unknown_epochs += 1
        elif isinstance(message, _TO_RECEIVER if theirs else _TO_SENDER):
            self._context.totals.bad_messages += 1
        elif theirs:
            self._sender.receive(connection, message)
        else:
            self._receiver.receive(connection, message)

    def _end_connection(self, connection: int, cause: Cause, reason: str) -> None:
        for sessions in self._registries:
            sessions.end_connection(connection, cause, reason)
        self._peers.forget(connection, reason)
        self._neighbours.leave(connection)


def _either(link: Link, neighbours: Neighbours) -> "Link | select.epoll":
    """Has a descriptor that is readable while one of these is."""
    if (other := neighbours.fileno()) is None:
        return link
    both = select.epoll()
    for fd in (link.fileno(), other):
        both.register(fd, select.EPOLLIN)
    return both
