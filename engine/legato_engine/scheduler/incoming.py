"""Sequences that come from other workers: blocks are reserved, granted, written by a peer, adopted or abandoned."""

from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence

from legato_engine.request import Request, State
from legato_engine.scheduler.admission import Admission
from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.block_tables import Ledger
from legato_engine.scheduler.limits import Limits, Refused
from legato_engine.scheduler.queue import Key
from legato_engine.scheduler.request_registry import Residents
from legato_engine.scheduler.results import Emission, Reservation

Deliver = Callable[[Request, Mapping[int, Sequence[Sampled]]], list[Emission]]


class Incoming:
    """Reservations in order. Granted ones count as running: their blocks and slots are theirs."""

    def __init__(self, limits: Limits, residents: Residents, ledger: Ledger, admission: Admission) -> None:
        self._limits = limits
        self._residents = residents
        self._ledger = ledger
        self._admission = admission
        self._pending: list[tuple[Key, Reservation]] = []
        self._granted: list[Reservation] = []  # oldest first
        self._quarantined: list[Reservation] = []
        self._news: list[Reservation] = []
        self._wanted_back: list[Reservation] = []

    def __iter__(self) -> Iterator[Reservation]:
        """Pending and granted ones."""
        return iter([*(reservation for _, reservation in self._pending), *self._granted])

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def idle(self) -> bool:
        return not (self._pending or self._granted or self._quarantined)

    def reserve(self, request: Request) -> Reservation:
        self._limits.check(request, self._ledger.pool.size)
        if len(self._pending) >= self._limits.max_waiting:
            raise Refused("overloaded", f"{len(self._pending)} hand-offs wait for blocks already")
        request.number = self._residents.number()
        reservation = Reservation(request)
        self._queue(reservation)
        return reservation

    def grant_before(self, key: Key | None) -> bool:
        """Grant pending reservations that come before `key`, in order; False when one of them must wait."""
        while self._pending and (key is None or self._pending[0][0] < key):
            if not self._grant(self._pending[0][1]):
                return False
            del self._pending[0]
        return True

    def take_granted(self) -> tuple[Reservation, ...]:
        news, self._news = self._news, []
        return tuple(news)

    def take_wanted_back(self) -> tuple[Reservation, ...]:
        wanted, self._wanted_back = self._wanted_back, []
        return tuple(wanted)

    def revoke(self, lacking: int) -> None:
        """Want grants back that nobody has written to, newest first, until `lacking` blocks are on their way.

        Those nobody was told of wait again; their blocks are back at once."""
        coming = sum(len(reservation.quarantined) for reservation in self._quarantined)
        coming += sum(reservation.fresh for reservation in self._granted if reservation.revoking)
        for reservation in reversed([r for r in self._granted if not (r.written or r.revoking)]):
            if coming >= lacking:
                break
            coming += reservation.fresh
            if reservation in self._news:
                self._take_back(reservation)
            else:
                reservation.revoking = True
                self._wanted_back.append(reservation)

    def written(self, reservation: Reservation) -> None:
        reservation.written = True
        reservation.revoking = False

    def taken_back(self, reservation: Reservation) -> None:
        if not reservation.over and reservation.revoking:
            self._take_back(reservation)

    def adopt(
        self, reservation: Reservation, computed: int, sampled: Mapping[int, Sequence[Sampled]], deliver: Deliver
    ) -> tuple[Emission, ...]:
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
        request.state = State.RUNNING
        computed = max(computed, reservation.cached * self._limits.block_size)
        self._rewind(request, computed, len(request.tokens) + min(follow))
        self._residents.run(request)
        return tuple(deliver(request, sampled))

    def abandon(self, reservation: Reservation) -> None:
        if reservation.over:
            return
        if reservation in self._news:
            self._take_back(reservation)
        if not reservation.granted:
            self._pending = [entry for entry in self._pending if entry[1] is not reservation]
            reservation.over = True
            return
        self._forget(reservation)
        self._ledger.pool.release(reservation.blocks[: reservation.cached])
        reservation.quarantined = reservation.blocks[reservation.cached :]
        reservation.blocks = []
        self._ledger.pool.quarantine(reservation.quarantined)
        self._quarantined.append(reservation)

    def released(self, reservation: Reservation) -> None:
        if reservation in self._quarantined:
            self._quarantined.remove(reservation)
            self._ledger.pool.readmit(reservation.quarantined)
            reservation.quarantined = []

    def _grant(self, reservation: Reservation) -> bool:
        request = reservation.request
        if len(request.choices) > self._admission.slots():
            return False
        known = len(request.tokens)
        matched = self._ledger.match(request, known // self._limits.block_size)
        blocks = self._limits.blocks_for(known) + 1
        if not self._admission.fits(self._ledger.missing(matched, blocks)):
            return False
        if not self._ledger.open(request, matched, blocks):
            return False
        reservation.blocks, request.blocks = request.blocks, []
        reservation.cached = len(matched)
        request.computed = request.stored = 0
        reservation.granted = True
        self._admission.reserved += len(request.choices)
        self._granted.append(reservation)
        self._news.append(reservation)
        return True

    def _queue(self, reservation: Reservation) -> None:
        key = self._residents.queue.key(reservation.request)
        insort(self._pending, (key, reservation), key=lambda entry: entry[0])

    def _take_back(self, reservation: Reservation) -> None:
        """Undo a grant that no peer writes to: it waits again."""
        if reservation in self._news:
            self._news.remove(reservation)
        self._forget(reservation)
        self._ledger.pool.release(reservation.blocks)
        reservation.blocks, reservation.cached = [], 0
        reservation.granted = reservation.over = False
        self._queue(reservation)

    def _forget(self, reservation: Reservation) -> None:
        self._granted.remove(reservation)
        if reservation in self._wanted_back:
            self._wanted_back.remove(reservation)
        self._admission.reserved -= len(reservation.request.choices)
        reservation.over = True
        reservation.revoking = False

    def _rewind(self, request: Request, computed: int, known: int) -> None:
        """Set `computed`, but leave at least one token to compute: back to a block's begin, so that no stored block is
        written to."""
        size = self._limits.block_size
        if computed >= known:
            computed = (known - 1) // size * size
            self._ledger.pool.release(request.blocks[computed // size :])
            del request.blocks[computed // size :]
            request.stored = min(request.stored, computed // size)
        request.computed = computed
        request.farthest = computed
