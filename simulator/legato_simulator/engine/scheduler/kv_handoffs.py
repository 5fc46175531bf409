"""Hand-offs between schedulers in virtual time: granted, written while the prompt is computed, committed.

This is the core's part; the rules are in the schedulers. Messages take no time. Each sender's link transfers the KV of
one hand-off after the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from legato_engine.policy import (
    Emission,
    IncomingTransfer,
    OutgoingState,
    OutgoingTransfer,
    Request,
    RequestRejected,
    RequestState,
    Sampled,
    SequenceKV,
    VirtualTime,
    outgoing_of,
)
from legato_simulator.engine.scheduler.scheduled_worker import TOKEN, ScheduledWorker


@dataclass(eq=False, slots=True)
class KVHandoff:
    """A hand-off from one worker to another.

    `there` is the time when all KV sent so far has arrived. `failed` is called if a migration ends and its sequence
    stays at the source.
    """

    source: ScheduledWorker
    target: ScheduledWorker
    incoming: IncomingTransfer
    outgoing: OutgoingTransfer
    failed: Callable[[], None]
    there: float = 0.0


Arrived = Callable[[KVHandoff, Sequence[Emission]], None]
Wake = Callable[[ScheduledWorker], None]


class KVHandoffs:
    """All hand-offs of a service.

    `arrived` is called with each completed hand-off and the receiver's emissions, `wake` with workers that may have a
    step.
    """

    def __init__(self, time: VirtualTime, rate: float, arrived: Arrived, wake: Wake) -> None:
        self._time, self._rate, self._arrived, self._wake = time, rate, arrived, wake
        self._rooms: dict[int, KVHandoff] = {}
        self._migrations: dict[KVHandoff, None] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._rooms)

    def new_room(self) -> int:
        """Returns a new room number."""
        self._next += 1
        return self._next

    def prefill(self, source: ScheduledWorker, there: Request, target: ScheduledWorker, here: Request) -> None:
        """Lets `source` compute the prompt of `there`, and `target` decode `here`. Raises RequestRejected."""
        now = self._time.now
        incoming = target.scheduler.incoming.reserve(here, source.peer, now)
        try:
            source.scheduler.add(there, now)
        except RequestRejected:
            target.scheduler.incoming.abandon(incoming)
            raise
        self._expect(source, target, incoming, there)

    def migrate(
        self,
        source: ScheduledWorker,
        running: Request,
        target: ScheduledWorker,
        here: Request,
        failed: Callable[[], None],
    ) -> None:
        """Lets `running` continue at `target`, if it still runs when that has room. Raises RequestRejected."""
        assert here.room is not None
        incoming = target.scheduler.incoming.reserve(here, source.peer, self._time.now)
        source.scheduler.outgoing.migrate(running, here.room, here.attempt)
        self._expect(source, target, incoming, running, failed)

    def on_step_end(self, worker: ScheduledWorker, advanced: list[Request], prefilled: list[Request]) -> None:
        """Writes the blocks that a step of `worker` completed, and finishes complete hand-offs."""
        for request in (*advanced, *prefilled):
            if (handoff := self._sending(request)) is not None and handoff.outgoing.state is OutgoingState.GRANTED:
                self._write(handoff)
                if request.state is RequestState.COMPUTED:
                    self._finish(handoff)
        for handoff in [h for h in self._migrations if h.source is worker]:
            if handoff.outgoing.request.state is RequestState.ENDED:
                self.drop(handoff)
            elif handoff.outgoing.state is OutgoingState.STOPPING:
                self._finish(handoff)

    def grant(self, worker: ScheduledWorker) -> None:
        """Grants the room that `worker` has reserved to its sources, and revokes grants that it needs back."""
        incoming = worker.scheduler.incoming
        for transfer in incoming.grants():
            if (handoff := self._receiving(transfer)) is not None:
                firsts = tuple([table.first for table in transfer.windows])
                self._granted(handoff, len(transfer.blocks), firsts)
        for transfer in incoming.revocations():
            if (handoff := self._receiving(transfer)) is None:
                continue
            if handoff.outgoing.state is OutgoingState.GRANTED and handoff.outgoing.sent <= transfer.cached:
                handoff.source.scheduler.outgoing.withdraw(handoff.outgoing)
                incoming.on_revoked(transfer)
                self._wake(worker)
            else:
                incoming.on_written(transfer)

    def end(self, id: str) -> None:
        """Ends all hand-offs of a request that its schedulers have cancelled."""
        for handoff in [h for h in self._rooms.values() if h.incoming.request.id == id]:
            self.drop(handoff)

    def drop(self, handoff: KVHandoff) -> None:
        """Ends a hand-off and frees the blocks of both sides."""
        incoming, outgoing = handoff.target.scheduler.incoming, handoff.source.scheduler.outgoing
        del self._rooms[handoff.outgoing.room]
        self._migrations.pop(handoff, None)
        incoming.abandon(handoff.incoming)
        incoming.on_released(handoff.incoming)
        outgoing.cancel(handoff.outgoing)
        outgoing.abort(handoff.outgoing)
        self._wake(handoff.source)
        self._wake(handoff.target)

    def _expect(
        self,
        source: ScheduledWorker,
        target: ScheduledWorker,
        incoming: IncomingTransfer,
        request: Request,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        outgoing = outgoing_of(request)
        assert outgoing is not None
        self._rooms[outgoing.room] = made = KVHandoff(source, target, incoming, outgoing, failed)
        if outgoing.migration:
            self._migrations[made] = None
        self._wake(source)
        self._wake(target)

    def _sending(self, request: Request) -> KVHandoff | None:
        outgoing = outgoing_of(request)
        return None if outgoing is None else self._rooms.get(outgoing.room)

    def _receiving(self, transfer: IncomingTransfer) -> KVHandoff | None:
        return None if transfer.request.room is None else self._rooms.get(transfer.request.room)

    def _granted(self, handoff: KVHandoff, blocks: int, firsts: tuple[int, ...]) -> None:
        if handoff.outgoing.migration and handoff.outgoing.request.state is not RequestState.RUNNING:
            self.drop(handoff)  # preempted while it waited for the grant
            handoff.failed()
            return
        handoff.source.scheduler.outgoing.grant(handoff.outgoing, blocks, firsts)
        self._write(handoff)
        self._wake(handoff.source)
        if handoff.outgoing.migration:
            self._time.after(max(0.0, handoff.there - self._time.now), partial(self._stop, handoff))

    def _stop(self, handoff: KVHandoff) -> None:
        """Stops a migrating sequence once its existing blocks are written; it decodes until then."""
        if self._rooms.get(handoff.outgoing.room) is handoff and handoff.outgoing.state is OutgoingState.GRANTED:
            self._finish(handoff)

    def _write(self, handoff: KVHandoff) -> None:
        """Writes complete blocks that have room at the target, except those that it has cached."""
        outgoing, incoming, size = handoff.outgoing, handoff.incoming, handoff.source.kind.block_size
        full = min(outgoing.request.full_blocks(size), outgoing.capacity)
        if full > (first := max(outgoing.sent, incoming.cached)):
            handoff.target.scheduler.incoming.on_written(incoming)
            self._send(handoff, (full - first) * size)
        outgoing.sent = max(outgoing.sent, full)

    def _send(self, handoff: KVHandoff, tokens: int) -> None:
        source = handoff.source
        source.sends_until = max(self._time.now, source.sends_until) + tokens / self._rate
        handoff.there = source.sends_until

    def _finish(self, handoff: KVHandoff) -> None:
        try:
            last = handoff.source.scheduler.outgoing.finish(handoff.outgoing)
        except ValueError:  # the granted windows do not fit
            self.drop(handoff)
            handoff.failed()
            return
        if last is None:
            return
        self._write(handoff)
        self._send(handoff, last.computed % handoff.source.kind.block_size)
        self._time.after(max(0.0, handoff.there - self._time.now), partial(self._commit, handoff, last))

    def _commit(self, handoff: KVHandoff, last: SequenceKV) -> None:
        if self._rooms.pop(handoff.outgoing.room, None) is None:
            return
        self._migrations.pop(handoff, None)
        known = len(handoff.incoming.request.tokens)
        sampled = [Sampled(token) for token in last.token_ids[known:]] if handoff.outgoing.migration else [TOKEN]
        emissions = handoff.target.scheduler.incoming.adopt(handoff.incoming, last.computed, {0: sampled})
        handoff.source.scheduler.outgoing.commit(handoff.outgoing)
        self._arrived(handoff, emissions)
        self._wake(handoff.source)
        self._wake(handoff.target)
