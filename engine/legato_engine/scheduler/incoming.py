"""Sequences that come from other workers: blocks are reserved, granted, written by a peer, adopted or abandoned."""

from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence

from legato_engine.request import Request
from legato_engine.scheduler.admission import AdmissionControl
from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.block_tables import BlockTables
from legato_engine.scheduler.limits import RequestRejected, SchedulerLimits
from legato_engine.scheduler.queue import Key
from legato_engine.scheduler.request_registry import RequestRegistry
from legato_engine.scheduler.results import Emission, Reservation

Deliver = Callable[[Request, Mapping[int, Sequence[Sampled]]], list[Emission]]


class IncomingHandoffs:
    """The receiver's side: reservations in order. Granted ones count as running: their blocks and slots are theirs."""

    def __init__(
        self,
        limits: SchedulerLimits,
        registry: RequestRegistry,
        tables: BlockTables,
        admission: AdmissionControl,
        deliver: Deliver,
    ) -> None:
        self._limits = limits
        self._registry = registry
        self._tables = tables
        self._admission = admission
        self._deliver = deliver
        self._pending: list[tuple[Key, Reservation]] = []
        self._granted: list[Reservation] = []  # oldest first
        self._quarantined: list[Reservation] = []
        self._new_grants: list[Reservation] = []
        self._revocations: list[Reservation] = []

    def __iter__(self) -> Iterator[Reservation]:
        """Pending and granted ones."""
        return iter([*(reservation for _, reservation in self._pending), *self._granted])

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def idle(self) -> bool:
        return not (self._pending or self._granted or self._quarantined)

    # ── life of a reservation ──

    def reserve(self, request: Request, now: float) -> Reservation:
        """Ask for blocks for a Decode frame's sequence; they are granted in order (see `grants`).

        Raises RequestRejected as `Scheduler.add` does."""
        self._limits.check(request, self._tables.pool.size)
        if len(self._pending) >= self._limits.max_waiting:
            raise RequestRejected("overloaded", f"{len(self._pending)} hand-offs wait for blocks already")
        self._registry.arrive(request, now)
        reservation = Reservation(request)
        self._queue(reservation)
        return reservation

    def grants(self) -> tuple[Reservation, ...]:
        """Reservations granted since the last call, after granting what can be granted now."""
        first = next((request for request in self._registry.queue if not request.paused), None)
        self.grant_before(None if first is None else self._registry.queue.key(first))
        grants, self._new_grants = self._new_grants, []
        return tuple(grants)

    def revocations(self) -> tuple[Reservation, ...]:
        """Granted reservations whose blocks are needed here, since the last call, for the caller to revoke. They stay
        granted until the peer has answered: `revoked`, or `written` where it was too late."""
        revocations, self._revocations = self._revocations, []
        return tuple(revocations)

    def revoked(self, reservation: Reservation) -> None:
        """The peer gave the grant back and has put nothing: the blocks are free, the reservation waits for others."""
        if not reservation.over and reservation.revoking:
            self._requeue(reservation)

    def written(self, reservation: Reservation) -> None:
        """The peer has put something: the grant cannot be revoked any more."""
        reservation.written = True
        reservation.revoking = False

    def adopt(
        self, reservation: Reservation, computed: int, sampled: Mapping[int, Sequence[Sampled]]
    ) -> tuple[Emission, ...]:
        """The hand-off is committed: the sequence runs here from now on, as one request per choice.

        KV of the first `computed` tokens is in the reservation's blocks. `sampled[choice]` are the tokens that follow
        those in `reservation.request.tokens`: what this worker has to emit. Several choices have either one or more
        each (they fork now) or none (they fork after the prompt). Returns their emissions, with `finish` where a
        sequence is over already. Raises ValueError for a hand-off that does not match the reservation; nothing is
        changed then."""
        request = reservation.request
        if reservation.over or not reservation.granted:
            raise ValueError("this reservation holds no blocks")
        follow = [len(sampled.get(choice, ())) for choice in request.choices]
        if len(follow) > 1 and any(follow) and not all(follow):
            raise ValueError("some choices have a first token and some have none")
        shared = len(request.tokens) + (follow[0] if len(follow) == 1 else 0)
        if not 0 <= computed <= min(shared, len(reservation.blocks) * self._limits.block_size):
            raise ValueError(f"KV of {computed} tokens; {shared} are shared, {len(reservation.blocks)} blocks reserved")
        self._forget(reservation)
        request.blocks, reservation.blocks = reservation.blocks, []
        request.stored = reservation.cached
        request.room = None
        computed = max(computed, reservation.cached * self._limits.block_size)
        self._rewind(request, computed, len(request.tokens) + min(follow))
        self._registry.run(request)
        return tuple(self._deliver(request, sampled))

    def abandon(self, reservation: Reservation) -> None:
        """The hand-off was aborted. Granted blocks are quarantined until `released`; without a grant nothing is left.

        An adopted or abandoned one stays as it is."""
        if reservation.over:
            return
        if reservation in self._new_grants:
            self._requeue(reservation)
        if not reservation.granted:
            self._pending = [entry for entry in self._pending if entry[1] is not reservation]
            reservation.over = True
            return
        self._forget(reservation)
        self._tables.pool.release(reservation.blocks[: reservation.cached])
        reservation.quarantined = reservation.blocks[reservation.cached :]
        reservation.blocks = []
        self._tables.pool.quarantine(reservation.quarantined)
        self._quarantined.append(reservation)

    def released(self, reservation: Reservation) -> None:
        """No peer can write to this abandoned reservation's blocks any more: they are free."""
        if reservation in self._quarantined:
            self._quarantined.remove(reservation)
            self._tables.pool.readmit(reservation.quarantined)
            reservation.quarantined = []

    # ── asked by the planner ──

    def grant_before(self, key: Key | None) -> bool:
        """Grant pending reservations that come before `key`, in order; False when one of them must wait."""
        while self._pending and (key is None or self._pending[0][0] < key):
            if not self._grant(self._pending[0][1]):
                return False
            del self._pending[0]
        return True

    def reclaim(self, lacking: int) -> None:
        """Revoke grants that nobody has written to, newest first, until `lacking` blocks are on their way.

        Those nobody was told of wait again; their blocks are back at once."""
        coming = sum(len(reservation.quarantined) for reservation in self._quarantined)
        coming += sum(reservation.fresh for reservation in self._granted if reservation.revoking)
        for reservation in reversed([r for r in self._granted if not (r.written or r.revoking)]):
            if coming >= lacking:
                break
            coming += reservation.fresh
            if reservation in self._new_grants:
                self._requeue(reservation)
            else:
                reservation.revoking = True
                self._revocations.append(reservation)

    # ── inside ──

    def _grant(self, reservation: Reservation) -> bool:
        request = reservation.request
        if len(request.choices) > self._admission.slots():
            return False
        known = len(request.tokens)
        matched = self._tables.match(request, known // self._limits.block_size)
        blocks = self._limits.blocks_for(known) + 1
        if not self._admission.fits(self._tables.missing(matched, blocks)):
            return False
        self._tables.open(request, matched, blocks)
        reservation.blocks, request.blocks = request.blocks, []
        reservation.cached = len(matched)
        reservation.granted = True
        self._admission.reserved += len(request.choices)
        self._granted.append(reservation)
        self._new_grants.append(reservation)
        return True

    def _queue(self, reservation: Reservation) -> None:
        key = self._registry.queue.key(reservation.request)
        insort(self._pending, (key, reservation), key=lambda entry: entry[0])

    def _requeue(self, reservation: Reservation) -> None:
        """Undo a grant that no peer writes to: it waits again."""
        if reservation in self._new_grants:
            self._new_grants.remove(reservation)
        self._forget(reservation)
        self._tables.pool.release(reservation.blocks)
        reservation.blocks, reservation.cached = [], 0
        reservation.granted = reservation.over = False
        self._queue(reservation)

    def _forget(self, reservation: Reservation) -> None:
        self._granted.remove(reservation)
        if reservation in self._revocations:
            self._revocations.remove(reservation)
        self._admission.reserved -= len(reservation.request.choices)
        reservation.over = True
        reservation.revoking = False

    def _rewind(self, request: Request, computed: int, known: int) -> None:
        """Set `computed`, but leave at least one token to compute: back to a block's begin, so that no stored block is
        written to."""
        size = self._limits.block_size
        if computed >= known:
            computed = (known - 1) // size * size
            self._tables.pool.release(request.blocks[computed // size :])
            del request.blocks[computed // size :]
            request.stored = min(request.stored, computed // size)
        request.computed = computed
        request.farthest = computed
