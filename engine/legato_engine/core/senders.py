"""Sequences that leave this worker: prefills for a hand-off, and running ones that migrate when it drains."""

from collections.abc import Iterable, Mapping, Sequence

from legato_engine.core.outbox import Outbox, split_key
from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.outgoing import OutgoingHandoffs
from legato_engine.scheduler.request import Request, RequestState
from legato_engine.scheduler.results import Emission
from legato_engine.scheduler.transfers import OutgoingState, OutgoingTransfer, outgoing_of
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.events import Aborted, Committed, Granted, GrantRevoked
from legato_protocol.block_hash import root
from legato_protocol.packed_tokens import pack_tokens
from legato_protocol.stream import Handoff, Peer, TokenItem

_NEARLY = (
    1  # blocks on their way when a migrating sequence stops: with the partial one, that is what its pause lasts for
)
_LOGPROBS_KEPT = 64  # outputs of a migrating sequence that its gateway may not have seen when it asked for that


class HandoffSenders:
    """The scheduler's outgoing transfers by room, until nothing of them is read any more."""

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
        """Whether a sequence is on its way out under this room."""
        return room in self._rooms

    # ── asked by a gateway ──

    def prefill(self, request: Request, to: Peer) -> None:
        """`request.room` is going to be sent to `to`; the scheduler has it."""
        transfer = outgoing_of(request)
        assert transfer is not None
        self._expect(transfer, to)

    def migrate(self, request: Request, frame: Handoff) -> None:
        """A running sequence is going to be sent, and goes on here. An earlier migration without a grant is over."""
        self.ended([request], "the sequence migrates to another worker")
        self._expect(self._outgoing.migrate(request, frame.room, frame.attempt), frame.to)

    def ended(self, requests: Iterable[Request], reason: str) -> None:
        """These were cancelled, or their time ran out: nobody waits for their hand-offs any more."""
        for request in requests:
            transfer = outgoing_of(request)
            if transfer is not None and self._rooms.get(transfer.room) is transfer:
                self._cancel(transfer, reason)

    # ── steps ──

    def keep(self, emission: Emission) -> None:
        """Remember logprobs, which a migration must repeat: its receiver repeats tokens that may overtake ours."""
        request = emission.request
        if request.params.logprobs is None:
            return
        if emission.finish:
            self._recent.pop(request, None)
            return
        recent = self._recent.setdefault(request, [])
        for one in emission.sampled:
            if one.logprobs is None:  # those before it cannot be told as one run with those after it
                recent.clear()
            else:
                recent.append(one)
        del recent[:-_LOGPROBS_KEPT]

    def stepped(self, advanced: Iterable[Request], prefilled: Iterable[Request]) -> None:
        """A step was processed: push what it completed, finish what is whole."""
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
        """Migrating sequences decode on while their blocks travel, and stop for the last of them. In every turn: puts
        end, and paused sequences migrate, also when nothing is computed."""
        for transfer in list(self._rooms.values()):
            if transfer.migration and not transfer.over and transfer.state is not OutgoingState.FINISHED:
                self._continue_migration(transfer)

    # ── transfer events ──

    def granted(self, event: Granted) -> None:
        """The receiver has room; perhaps for one that was cancelled meanwhile."""
        transfer = self._rooms.get(event.room)
        if transfer is None or transfer.attempt != event.attempt or transfer.over:
            return
        try:
            self._outgoing.grant(transfer, event.blocks)
        except ValueError as error:
            self._agent.abort(event.room, str(error))
        else:
            self._push(transfer)

    def revoked(self, event: GrantRevoked) -> None:
        """The receiver took its grant back, before anything was put: all is pushed after the next one."""
        transfer = self._rooms.get(event.room)
        if transfer is not None and transfer.keeping and not transfer.over:
            self._outgoing.withdraw(transfer)

    def committed(self, event: Committed) -> None:
        """The receiver owns the sequence."""
        transfer = self._rooms.pop(event.room, None)
        if transfer is not None:
            self.sent += 1
            self._outgoing.commit(transfer)

    def aborted(self, event: Aborted) -> None:
        """Nothing reads its blocks any more. Nobody waits for one that was cancelled, and it did not fail."""
        transfer = self._rooms.pop(event.room, None)
        if transfer is None:
            return
        if not transfer.over:
            self.failed += 1
            self._outbox.aborted(transfer.request.id, event)
        self._outgoing.abort(transfer)

    # ── inside ──

    def _expect(self, transfer: OutgoingTransfer, to: Peer) -> None:
        self._rooms[transfer.room] = transfer
        request = transfer.request
        parent = root(self._kv_revision, request.adapter, request.cache_salt)
        self._agent.expect(transfer.room, transfer.attempt, to, parent)

    def _cancel(self, transfer: OutgoingTransfer, reason: str) -> None:
        self._outgoing.cancel(transfer)
        self._agent.abort(transfer.room, reason)

    def _push(self, transfer: OutgoingTransfer) -> None:
        """Blocks that are complete and have room there."""
        request, first = transfer.request, transfer.sent
        full = min(request.full_blocks(self._block_size), transfer.capacity)
        if full > first:
            self._agent.push(transfer.room, first, request.blocks[first:full], request.hashes[first:full])
            transfer.sent = full

    def _finish(self, transfer: OutgoingTransfer) -> None:
        """The last part, if it is time for it: what is complete, and the block that is not."""
        last = self._outgoing.finish(transfer)
        if last is None:
            return
        self._push(transfer)
        request = transfer.request
        items = [self._recent_item(request)] if transfer.migration else _first_items(request)
        partial = last.blocks[-1] if last.computed % self._block_size else None
        self._agent.finish(transfer.room, pack_tokens(last.token_ids), last.computed, items, partial)

    def _continue_migration(self, transfer: OutgoingTransfer) -> None:
        request = transfer.request
        if request.state is RequestState.ENDED:
            self._cancel(transfer, "the sequence has ended")
        elif transfer.state is not OutgoingState.PENDING:
            fits = request.computed < transfer.capacity * self._block_size  # what is beyond it is computed twice
            if not (request.schedulable and fits and self._agent.unwritten(transfer.room) > _NEARLY):
                self._finish(transfer)

    def _recent_item(self, request: Request) -> TokenItem:
        recent = self._recent.get(request, [])
        return _item(request, request.choice, request.outputs - len(recent), recent)


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
