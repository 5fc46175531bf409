"""Sequences handed off by this worker: prefills, and running sequences that migrate."""

from collections.abc import Iterable, Mapping, Sequence

from legato_engine.core.reporting.outbox import Outbox, split_key
from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.handoff.outgoing import OutgoingHandoffs
from legato_engine.scheduler.handoff.transfers import OutgoingState, OutgoingTransfer, outgoing_of
from legato_engine.scheduler.requests.request import Request, RequestState
from legato_engine.scheduler.results import Emission
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.blocks.spans import WindowBlocks
from legato_engine.transfer.session.events import Aborted, Committed, Granted, GrantRevoked
from legato_protocol.wire.block_hash import root
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import Handoff, Peer, TokenItem

# A migrating sequence stops when at most this many blocks are still being written. Its pause lasts until they and the
# partial block have arrived.
_NEARLY = 1
_LOGPROBS_KEPT = 64  # outputs that the gateway may not have received when it asked for a migration


class HandoffSenders:
    """The scheduler's outgoing transfers by room, until their blocks are no longer read."""

    def __init__(
        self, outgoing: OutgoingHandoffs, agent: TransferAgent, outbox: Outbox, *, block_size: int, kv_revision: str
    ) -> None:
        self._outgoing = outgoing
        self._agent = agent
        self._outbox = outbox
        self._block_size = block_size
        self._kv_revision = kv_revision
        self._rooms: dict[int, OutgoingTransfer] = {}
        self._recent: dict[Request, list[Sampled]] = {}  # of sequences whose request asked for logprobs
        self.sent = 0
        self.failed = 0

    def __len__(self) -> int:
        return len(self._rooms)

    def uses(self, room: int) -> bool:
        """True if a sequence is being sent under this room."""
        return room in self._rooms

    # ── asked by a gateway ──

    def prefill(self, request: Request, to: Peer) -> None:
        """Prepares to send `request.room`, which the scheduler has queued, to `to`."""
        transfer = outgoing_of(request)
        assert transfer is not None
        self._expect(transfer, to)

    def migrate(self, request: Request, frame: Handoff) -> None:
        """Begins to send a running sequence, which goes on decoding. An earlier migration of it is cancelled."""
        self.end([request], "the sequence migrates to another worker")
        self._expect(self._outgoing.migrate(request, frame.room, frame.attempt), frame.to)

    def end(self, requests: Iterable[Request], reason: str) -> None:
        """Cancels the hand-offs of requests that were cancelled or whose deadline passed."""
        for request in requests:
            transfer = outgoing_of(request)
            if transfer is not None and self._rooms.get(transfer.room) is transfer:
                self._cancel(transfer, reason)

    # ── steps ──

    def keep(self, emission: Emission) -> None:
        """Keeps recent logprobs for a migration: its receiver sends the last tokens again, which may overtake ours."""
        request = emission.request
        if request.params.logprobs is None:
            return
        if emission.finish:
            self._recent.pop(request, None)
            return
        recent = self._recent.setdefault(request, [])
        for one in emission.sampled:
            if one.logprobs is None:  # one item cannot have tokens with and without logprobs
                recent.clear()
            else:
                recent.append(one)
        del recent[:-_LOGPROBS_KEPT]

    def after_step(self, advanced: Iterable[Request], prefilled: Iterable[Request]) -> None:
        """Pushes blocks that a step completed, and finishes transfers whose prompt is computed."""
        for request in advanced:
            transfer = outgoing_of(request)
            if transfer is not None and transfer.state is OutgoingState.GRANTED:
                self._push(transfer)
        for request in prefilled:
            transfer = outgoing_of(request)
            if transfer is not None and transfer.state is OutgoingState.GRANTED:
                self._finish(transfer)
        self._recent = {r: recent for r, recent in self._recent.items() if r.state is not RequestState.ENDED}

    def continue_migrations(self) -> None:
        """Stops each migrating sequence once nearly all of its blocks are written; until then it goes on decoding.

        Called in every iteration: writes end, and paused sequences migrate, even if nothing is computed.
        """
        for transfer in list(self._rooms.values()):
            if transfer.migration and not transfer.over and transfer.state is not OutgoingState.FINISHED:
                self._continue_migration(transfer)

    # ── transfer events ──

    def on_granted(self, event: Granted) -> None:
        """The receiver has reserved blocks, perhaps for a transfer that was cancelled meanwhile."""
        transfer = self._rooms.get(event.room)
        if transfer is None or transfer.attempt != event.attempt or transfer.over:
            return
        try:
            self._outgoing.grant(transfer, event.blocks, event.firsts)
        except ValueError as error:
            self._agent.abort(event.room, str(error))
        else:
            self._push(transfer)

    def on_revoked(self, event: GrantRevoked) -> None:
        """The receiver revoked its grant before anything was written. Everything is pushed after the next grant."""
        transfer = self._rooms.get(event.room)
        if transfer is not None and transfer.keeping and not transfer.over:
            self._outgoing.withdraw(transfer)

    def on_committed(self, event: Committed) -> None:
        """The receiver now owns the sequence."""
        transfer = self._rooms.pop(event.room, None)
        if transfer is not None:
            self.sent += 1
            self._outgoing.commit(transfer)

    def on_aborted(self, event: Aborted) -> None:
        """The transfer is over, and its blocks are no longer read. A cancelled one does not count as failed."""
        transfer = self._rooms.pop(event.room, None)
        if transfer is None:
            return
        if not transfer.over:
            self.failed += 1
            self._outbox.report_abort(transfer.request.id, event)
        self._outgoing.abort(transfer)

    # ── internals ──

    def _expect(self, transfer: OutgoingTransfer, to: Peer) -> None:
        self._rooms[transfer.room] = transfer
        request = transfer.request
        parent = root(self._kv_revision, request.adapter, request.cache_salt)
        self._agent.expect(transfer.room, transfer.attempt, to, parent)

    def _cancel(self, transfer: OutgoingTransfer, reason: str) -> None:
        self._outgoing.cancel(transfer)
        self._agent.abort(transfer.room, reason)

    def _push(self, transfer: OutgoingTransfer) -> None:
        """Writes complete blocks for which the receiver has granted room."""
        request, first = transfer.request, transfer.sent
        full = min(request.full_blocks(self._block_size), transfer.capacity)
        if full > first:
            windows = _windows(request)
            self._agent.push(transfer.room, first, request.blocks[first:full], request.hashes[first:full], windows)
            transfer.sent = full

    def _finish(self, transfer: OutgoingTransfer) -> None:
        """Writes the remaining blocks with the partial one and sends `Final`, if the scheduler allows it."""
        try:
            last = self._outgoing.finish(transfer)
        except ValueError as error:
            self._agent.abort(transfer.room, str(error))
            return
        if last is None:
            return
        self._push(transfer)
        request = transfer.request
        items = [self._recent_item(request)] if transfer.migration else _first_items(request)
        partial = last.blocks[-1] if last.computed % self._block_size else None
        windows = _windows(request)
        self._agent.finish(transfer.room, pack_tokens(last.token_ids), last.computed, items, partial, windows)

    def _continue_migration(self, transfer: OutgoingTransfer) -> None:
        request = transfer.request
        if request.state is RequestState.ENDED:
            self._cancel(transfer, "the sequence has ended")
        elif transfer.state is not OutgoingState.PENDING and not self._outgoing.is_behind(transfer):
            fits = request.computed < transfer.capacity * self._block_size  # tokens beyond it are computed twice
            if not (request.schedulable and fits and self._agent.unwritten(transfer.room) > _NEARLY):
                self._finish(transfer)

    def _recent_item(self, request: Request) -> TokenItem:
        recent = self._recent.get(request, [])
        return _item(request, request.choice, request.outputs - len(recent), recent)


def _windows(request: Request) -> list[WindowBlocks]:
    return [WindowBlocks(table.first, table.blocks) for table in request.windows]


def _first_items(request: Request) -> list[TokenItem]:
    first: Mapping[int, Sampled] = request.first
    return [_item(request, choice, request.outputs, (sampled,)) for choice, sampled in first.items()]


def _item(request: Request, choice: int, index: int, sampled: Sequence[Sampled]) -> TokenItem:
    logprobs = tuple(one.logprobs for one in sampled if one.logprobs is not None)
    return TokenItem(
        id=split_key(request.id)[1],
        attempt=request.attempt,
        choice=choice,
        index=index,
        token_ids=tuple(one.token for one in sampled),
        logprobs=logprobs,
        cached_tokens=request.cached_tokens,
        preemptions=request.preempted,
    )
