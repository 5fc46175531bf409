"""The scheduler: who computes what in the next step, and what a step's output means. Pure: time is passed in.

    batch = scheduler.schedule(now)                     # None: nothing can be computed now
    result = scheduler.process(batch, output, now)

One step may be in flight. Between `schedule` and `process` every other method may be called; blocks given up then are
reused only after `process`. There are no phases: every request has known and computed tokens, running ones go first
(the idea is vLLM's and mini-sglang's), and a prompt is computed in chunks, so that decoding never stalls.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from math import inf

from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.request import Request, State
from legato_engine.scheduler.admission import Admission
from legato_engine.scheduler.batch import Batch, Sampled, StepOutput
from legato_engine.scheduler.block_tables import Ledger
from legato_engine.scheduler.incoming import Incoming
from legato_engine.scheduler.limits import Limits, Refused
from legato_engine.scheduler.outgoing import Outgoing
from legato_engine.scheduler.output_processor import Delivery
from legato_engine.scheduler.planner import Planner
from legato_engine.scheduler.queue import Order, WaitingQueue
from legato_engine.scheduler.request_registry import Residents
from legato_engine.scheduler.results import Emission, Ended, Frozen, Reservation, SchedulerLoad, StepResult
from legato_engine.scheduler.tenants import TenantTokens


class Scheduler:
    """The sequences of one worker. `kv_revision` goes into the root of every block hash."""

    def __init__(self, limits: Limits, pool: BlockPool, kv_revision: str) -> None:
        self.limits = limits
        self.pool = pool
        self._ledger = Ledger(pool, limits.block_size, kv_revision)
        self._queue = WaitingQueue(Order(limits))
        self._residents = Residents(self._ledger, self._queue)
        self._admission = Admission(limits, self._residents, self._ledger)
        self._incoming = Incoming(limits, self._residents, self._ledger, self._admission)
        self._outgoing = Outgoing(self._residents, self._ledger)
        self._planner = Planner(limits, self._residents, self._ledger, self._admission, self._incoming)
        self._delivery = Delivery(limits, self._residents, self._ledger)
        self._batch: Batch | None = None
        self._flight: list[Request] = []
        self._began = 0.0
        self._tenants = TenantTokens()
        self._earliest = inf  # no deadline is before it

    # Steps

    def add(self, request: Request, now: float) -> None:
        """Queue a request (Generate, or Prefill: with `room`).

        Raises Refused: invalid (too long, can never fit, nothing left to make) or overloaded (the queue is full)."""
        self.limits.check(request, self.pool.size)
        if len(self._queue) >= self.limits.max_waiting:
            raise Refused("overloaded", f"{len(self._queue)} requests wait already")
        request.arrival = now
        request.number = self._residents.number()
        self._earliest = min(self._earliest, request.deadline)
        self._residents.wait(request)

    def schedule(self, now: float) -> Batch | None:
        """The next step, or None when nothing can be computed now. RuntimeError while a step is in flight."""
        if self._batch is not None:
            raise RuntimeError("a step is in flight")
        rows, self._flight = self._planner.plan()
        if not rows:
            return None
        self._ledger.fly(self._flight)
        self._batch = Batch(tuple(rows), tuple(self._ledger.copies))
        self._began = now
        return self._batch

    def begun(self) -> list[Request]:
        """Those that have their first part in the step in flight; told once."""
        fresh = [request for request in self._flight if not request.begun]
        for request in fresh:
            request.begun = True
        return fresh

    def process(self, batch: Batch, output: StepOutput, now: float) -> StepResult:
        """Take in what the runner made of the step in flight. Its KV events are in `pool.events.take()` after it.

        ValueError when `batch` is not the step in flight."""
        if batch is not self._batch:
            raise ValueError("this is not the step in flight")
        flight, self._flight, self._batch = self._flight, [], None
        self._ledger.end_step()
        result = StepResult()
        served: defaultdict[str, int] = defaultdict(int)
        for request, row, sampled in zip(flight, batch.rows, output, strict=True):
            computed = len(row.tokens)
            served[request.tenant] += computed
            if computed == 1 and row.draws:
                result.decode_rows += 1
            else:
                result.prompt_tokens += computed
            self._delivery.row(request, computed, sampled, result)
        self._tenants.add(served)
        self._queue.measured(result.prompt_tokens, now - self._began)
        return result

    # Ending

    def cancel(self, id: str, attempt: int, choices: Collection[int] = ()) -> Ended:
        """End everything of this id at this and lower attempts, reservations too; with `choices`, only what stands for
        none beside these. Unknown ids and choices end nothing."""

        def meant(request: Request) -> bool:
            return request.attempt <= attempt and (not choices or all(c in choices for c in request.choices))

        return self._end(
            [r for r in self._residents.of(id) if meant(r)],
            [r for r in self._incoming if r.request.id == id and meant(r.request)],
        )

    def expire(self, now: float) -> Ended:
        """End everything whose deadline is past."""
        if now < self._earliest:
            return Ended()
        ended = self._end(
            [r for r in self._residents if r.deadline <= now],
            [r for r in self._incoming if r.request.deadline <= now],
        )
        deadlines = [r.deadline for r in self._residents if r.state is not State.ENDED]
        self._earliest = min([*deadlines, *(r.request.deadline for r in self._incoming)], default=inf)
        return ended

    def rename(self, request: Request, id: str) -> None:
        """Know `request` by another id from here on."""
        self._residents.rename(request, id)

    def pause(self, id: str, attempt: int, on: bool) -> None:
        """Make no tokens for it (or, with `on` False, go on). It keeps its blocks until somebody needs them."""
        for request in (*self._residents.of(id), *(r.request for r in self._incoming if r.request.id == id)):
            if request.attempt == attempt:
                request.paused = on

    # What is here

    def requests(self, id: str) -> tuple[Request, ...]:
        """All of this id (one per choice after a fork), reservations not included."""
        return self._residents.of(id)

    def load(self) -> SchedulerLoad:
        counts = self.pool.counts()
        prefilling = sum(r.remaining for r in self._residents.running if r.remaining > 1)
        return SchedulerLoad(
            queue_tokens=self._queue.tokens + prefilling,
            waiting=len(self._queue) + self._incoming.pending,
            running=len(self._residents.running),
            free_blocks=counts.free,
            cached_blocks=counts.cached,
            used_blocks=counts.used,
            quarantined_blocks=counts.quarantined,
            tokens_by_tenant=self._tenants.counts(),
        )

    @property
    def idle(self) -> bool:
        """Nothing is queued, running, parked, handed over, reserved or quarantined."""
        return not len(self._residents) and self._incoming.idle and self._batch is None

    def check_integrity(self) -> None:
        """Raise AssertionError when the pool's references and the owners here disagree."""
        tables = [request.blocks for request in self._residents]
        self._ledger.check_integrity(tables + [reservation.blocks for reservation in self._incoming])
        for request in self._residents:
            self._ledger.check_writable(request)

    # Prefill for a hand-off (sender)

    def grant(self, request: Request) -> None:
        """The receiver granted blocks to `request`, which has a room. From here on its blocks stay until
        `release_handoff`; those complete now are `request.blocks[: request.full_blocks(block_size)]`. If it was parked
        it is queued again, before all others, and appears in `prefilled` when its KV is back. Nothing happens to one
        that has ended."""
        self._outgoing.grant(request)

    def withdraw(self, request: Request) -> None:
        """The receiver took its grant back and nothing is read from `request`'s blocks: it is as if there had been no
        grant. Computed already, it is parked until the next one, and is in `prefilled` again after that."""
        self._outgoing.withdraw(request)

    def release_handoff(self, request: Request) -> None:
        """The hand-off is over, by commit or by an abort after which nothing is sent: `request` and its blocks go. Also
        for a moving request that ended before its move did."""
        self._outgoing.release(request)

    # Moving a running sequence (sender)

    def begin_move(self, request: Request, blocks: int) -> None:
        """The receiver has room for the first `blocks` blocks (those it had cached included).

        `request` goes on running, is not preempted, and appears in `StepResult.advanced`. ValueError unless it is one
        running sequence: a waiting one has no KV, and one that will still fork has no single successor."""
        self._outgoing.begin_move(request, blocks)

    def freeze(self, request: Request) -> Frozen | None:
        """Schedule it no more. None while its step is in flight (call again after `process`) or when it has ended."""
        return self._outgoing.freeze(request)

    def unfreeze(self, request: Request) -> None:
        """The move failed and nothing more is sent: it goes on here; if it has ended, its blocks go."""
        self._outgoing.unfreeze(request)

    def finish_move(self, request: Request) -> None:
        """The receiver committed: the sequence and its blocks are gone from here."""
        self._outgoing.release(request)

    # Incoming sequences (receiver)

    def reserve(self, request: Request, now: float) -> Reservation:
        """Ask for blocks for a Decode frame's sequence; they are granted in order (see `grants`).

        Raises Refused as `add` does."""
        request.arrival = now
        reservation = self._incoming.reserve(request)
        self._earliest = min(self._earliest, request.deadline)
        return reservation

    def grants(self) -> tuple[Reservation, ...]:
        """Reservations granted since the last call, after granting what can be granted now."""
        first = next((r for r in self._queue if not r.paused), None)
        self._incoming.grant_before(None if first is None else self._queue.key(first))
        return self._incoming.take_granted()

    def wanted_back(self) -> tuple[Reservation, ...]:
        """Granted reservations whose blocks are needed here, since the last call, for the caller to revoke. They stay
        granted until the peer has answered: `taken_back`, or `written` where it was too late."""
        return self._incoming.take_wanted_back()

    def taken_back(self, reservation: Reservation) -> None:
        """The peer gave the grant back and has put nothing: the blocks are free, the reservation waits for others."""
        self._incoming.taken_back(reservation)

    def written(self, reservation: Reservation) -> None:
        """The peer has put something: the grant cannot be revoked any more."""
        self._incoming.written(reservation)

    def adopt(
        self, reservation: Reservation, computed: int, sampled: Mapping[int, Sequence[Sampled]]
    ) -> tuple[Emission, ...]:
        """The hand-off is committed: the sequence runs here from now on, as one request per choice.

        KV of the first `computed` tokens is in the reservation's blocks. `sampled[choice]` are the tokens that follow
        those in `reservation.request.tokens`: what this worker has to emit. Several choices have either one or more
        each (they fork now) or none (they fork after the prompt). Returns their emissions, with `finish` where a
        sequence is over already. ValueError for a hand-off that does not match the reservation; nothing is changed
        then."""
        return self._incoming.adopt(reservation, computed, sampled, self._delivery.tokens)

    def abandon(self, reservation: Reservation) -> None:
        """The hand-off was aborted. Blocks granted are quarantined until `released`; without a grant nothing is left.

        An adopted or abandoned one stays as it is."""
        self._incoming.abandon(reservation)

    def released(self, reservation: Reservation) -> None:
        """No peer can write to this abandoned reservation's blocks any more: they are free."""
        self._incoming.released(reservation)

    def _end(self, requests: list[Request], reservations: list[Reservation]) -> Ended:
        alive = tuple(request for request in requests if request.state is not State.ENDED)
        for request in alive:
            self._residents.end(request)
        for reservation in reservations:
            self._incoming.abandon(reservation)
        return Ended(alive, tuple(reservations))
