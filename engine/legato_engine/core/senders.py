"""Sequences that leave this worker: prefills for a hand-off, and running ones that migrate when it drains."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from legato_engine.core.outbox import Outbox, split_key
from legato_engine.request import Request, RequestState
from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.outgoing import OutgoingHandoffs
from legato_engine.scheduler.results import Emission
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.events import Aborted, Committed, Granted, GrantRevoked
from legato_protocol.block_hash import root
from legato_protocol.stream import Handoff, Peer, TokenItem, pack_tokens

_NEARLY = (
    1  # blocks on their way when a migrating sequence stops: with the partial one, that is what its pause lasts for
)
_LOGPROBS_KEPT = 64  # outputs of a migrating sequence that its gateway may not have seen when it asked for that


@dataclass(slots=True, eq=False)
class SendingRoom:
    """One room: the migration of a request that goes on running here, or a prefill, done when its prompt is."""

    request: Request
    attempt: int
    is_migration: bool = False
    granted: bool = False
    pushed: int = 0
    finished: bool = False
    silent: bool = False  # the gateway knows already that this attempt is over


class HandoffSenders:
    """Rooms in which this worker sends, from `expect` to the end of their blocks."""

    def __init__(
        self, outgoing: OutgoingHandoffs, agent: TransferAgent, outbox: Outbox, *, block_size: int, kv_revision: str
    ) -> None:
        self._outgoing = outgoing
        self._agent = agent
        self._outbox = outbox
        self._block_size = block_size
        self._kv_revision = kv_revision
        self._rooms: dict[int, SendingRoom] = {}
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
        assert request.room is not None
        self._expect(request.room, SendingRoom(request, request.attempt), to)

    def migrate(self, request: Request, frame: Handoff) -> None:
        """A running sequence is going to be sent, and goes on here. An earlier migration without a grant is over."""
        self.ended([request], "the sequence migrates to another worker")
        self._expect(frame.room, SendingRoom(request, frame.attempt, is_migration=True), frame.to)

    def ended(self, requests: Iterable[Request], reason: str) -> None:
        """These were cancelled, or their time ran out: nobody waits for their hand-offs any more."""
        gone = set(requests)
        for room, sending in list(self._rooms.items()):
            if sending.request in gone:
                sending.silent = True
                self._agent.abort(room, reason)

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
        rooms = {sending.request: room for room, sending in self._rooms.items() if sending.granted}
        for request in advanced:
            if request in rooms:
                self._push(rooms[request])
        for request in prefilled:
            if request in rooms and request.state is RequestState.COMPUTED:
                self._finish_prefill(rooms[request])
        self._recent = {r: recent for r, recent in self._recent.items() if r.state is not RequestState.ENDED}

    def continue_migrations(self) -> None:
        """Migrating sequences decode on while their blocks travel, and stop for the last of them. In every turn: puts
        end, and paused sequences migrate, also when nothing is computed."""
        for room, sending in list(self._rooms.items()):
            if sending.is_migration and not sending.finished:
                self._continue_migration(room, sending)

    # ── transfer events ──

    def granted(self, event: Granted) -> None:
        sending = self._rooms.get(event.room)
        if sending is None or sending.attempt != event.attempt:
            return
        if sending.is_migration:
            if sending.request.state is not RequestState.RUNNING:
                self._agent.abort(event.room, "the sequence is not running")
                return
            self._outgoing.begin_migration(sending.request, event.blocks)
        elif event.blocks * self._block_size < len(sending.request.tokens):
            self._agent.abort(event.room, "the grant is for another sequence: it is too small for this one")
            return
        else:
            self._outgoing.grant(sending.request)
        sending.granted = True
        self._push(event.room)

    def revoked(self, event: GrantRevoked) -> None:
        """The receiver took its grant back, before anything was put: all is pushed after the next one."""
        sending = self._rooms.get(event.room)
        if sending is None or not sending.granted:
            return
        sending.granted, sending.pushed, sending.finished = False, 0, False
        if sending.is_migration:
            self._outgoing.resume(sending.request)
        else:
            self._outgoing.withdraw(sending.request)

    def committed(self, event: Committed) -> None:
        """The receiver owns the sequence."""
        sending = self._close(event.room)
        if sending is None:
            return
        self.sent += 1
        self._outgoing.release(sending.request)

    def aborted(self, event: Aborted) -> None:
        """Nothing reads its blocks any more: a migrating sequence goes on here, a prefill is over."""
        sending = self._close(event.room)
        if sending is None:
            return
        if not sending.is_migration:
            self._outgoing.release(sending.request)
        elif sending.granted:
            self._outgoing.resume(sending.request)
        if not sending.silent:  # nobody waits for one that was cancelled, and it did not fail
            self.failed += 1
            self._outbox.aborted(sending.request.id, event)

    # ── inside ──

    def _expect(self, room: int, sending: SendingRoom, to: Peer) -> None:
        self._rooms[room] = sending
        request = sending.request
        parent = root(self._kv_revision, request.adapter, request.cache_salt)
        self._agent.expect(room, sending.attempt, to, parent)

    def _close(self, room: int) -> SendingRoom | None:
        return self._rooms.pop(room, None)

    def _push(self, room: int, limit: int | None = None) -> None:
        sending = self._rooms[room]
        request, first = sending.request, sending.pushed
        full = request.full_blocks(self._block_size)
        if sending.is_migration:
            full = min(full, request.migration_blocks)
        full = full if limit is None else min(full, limit)
        if full > first:
            self._agent.push(room, first, request.blocks[first:full], request.hashes[first:full])
            sending.pushed = full

    def _finish_prefill(self, room: int) -> None:
        sending = self._rooms[room]
        if sending.finished:
            return
        self._push(room)
        sending.finished = True
        request = sending.request
        partial = request.blocks[-1] if request.computed % self._block_size else None
        self._agent.finish(room, pack_tokens(request.tokens), request.computed, _first_items(request), partial)

    def _continue_migration(self, room: int, sending: SendingRoom) -> None:
        request = sending.request
        if request.state is RequestState.ENDED:
            sending.silent = sending.finished = True
            self._agent.abort(room, "the sequence has ended")
            return
        if not sending.granted:
            return
        has_room = request.computed < request.migration_blocks * self._block_size  # what is beyond it is computed twice
        if request.schedulable and has_room and self._agent.unwritten(room) > _NEARLY:
            return
        frozen = self._outgoing.freeze(request)
        if frozen is None:
            return
        self._push(room, frozen.computed // self._block_size)
        sending.finished = True
        partial = frozen.blocks[-1] if frozen.computed % self._block_size else None
        items = (self._recent_item(request),)
        self._agent.finish(room, pack_tokens(frozen.token_ids), frozen.computed, items, partial)

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
    )
