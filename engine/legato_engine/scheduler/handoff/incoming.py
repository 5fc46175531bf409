"""Sequences whose KV comes from another worker: blocks are reserved, granted, written to, adopted or abandoned."""

from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence

from legato_engine.kvcache.prefix_cache import CachedPrefix
from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.handoff.transfers import IncomingState, IncomingTransfer, prefix_of
from legato_engine.scheduler.queueing.admission import AdmissionControl
from legato_engine.scheduler.queueing.queue import Key
from legato_engine.scheduler.requests.block_tables import BlockTables
from legato_engine.scheduler.requests.limits import RequestRejected, SchedulerLimits
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.requests.request_registry import RequestRegistry
from legato_engine.scheduler.results import Emission
from legato_protocol.wire.stream import KVSource, Peer

Deliver = Callable[[Request, Mapping[int, Sequence[Sampled]]], list[Emission]]


class IncomingHandoffs:
    """The receiver's side of hand-offs and fetches.

    Transfers with blocks occupy their blocks like running sequences and, unless they are fetches, a slot.
    """

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
        self._pending: list[tuple[Key, IncomingTransfer]] = []
        self._holding: list[IncomingTransfer] = []  # transfers with blocks, oldest first; includes quarantined ones
        self._revocations: list[IncomingTransfer] = []  # not returned to the caller yet

    def __iter__(self) -> Iterator[IncomingTransfer]:
        """Transfers that are not over."""
        holding = [transfer for transfer in self._holding if not transfer.over]
        return iter([*(transfer for _, transfer in self._pending), *holding])

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def waiting(self) -> tuple[Request, ...]:
        """Sequences whose transfers wait for blocks, in order."""
        return tuple([transfer.request for _, transfer in self._pending])

    @property
    def granted_blocks(self) -> int:
        """Number of blocks of unfinished transfers that sources may write to."""
        return sum([transfer.fresh for transfer in self._holding if not transfer.over])

    @property
    def idle(self) -> bool:
        return not (self._pending or self._holding)

    # ── life of a transfer ──

    def reserve(self, request: Request, source: Peer, now: float) -> IncomingTransfer:
        """Queues a transfer from `source`; blocks are granted in order (see `grants`).

        Raises RequestRejected as `Scheduler.add` does.
        """
        self._limits.check(request, self._tables.pool.size)
        if len(self._pending) >= self._limits.max_waiting:
            raise RequestRejected("overloaded", f"{len(self._pending)} hand-offs wait for blocks already")
        self._registry.arrive(request, now)
        request.scored = request.prompt_len  # by its source
        transfer = IncomingTransfer(request, source)
        self._queue(transfer)
        return transfer

    def fetch(self, request: Request, source: KVSource, now: float) -> IncomingTransfer | None:
        """Allocates blocks to fetch the part of the prefix of `request` that `source` has cached and this worker lacks.

        They are granted next. None if no block is missing. Raises RequestRejected if there is no room for them.
        `request` itself stays as it is: it may start at any time.
        """
        size = self._limits.block_size
        count = min(source.blocks, (len(request.tokens) - 1) // size)
        hashes = self._tables.hashes(request, count)[:count]
        prefix = prefix_of(request, source.room, hashes, size, now + source.seconds)
        matched = self._tables.match(prefix, count)
        if matched.count >= count or request.scoring:
            return None
        if not self._admission.fits(self._tables.missing(prefix, matched, count)):
            raise RequestRejected("overloaded", f"no room for {count - matched.count} blocks of a fetch")
        self._registry.arrive(prefix, now)
        transfer = IncomingTransfer(prefix, source.peer, fetch=True)
        self._open(transfer, matched, count)
        return transfer

    def grants(self) -> tuple[IncomingTransfer, ...]:
        """Allocates blocks for pending transfers. Returns transfers with new blocks, to which sources may write.

        Transfers whose blocks are still moved to or from the host are returned by a later call.
        """
        first = next((request for request in self._registry.queue if not request.paused), None)
        with self._admission.one_pass():
            self.grant_before(None if first is None else self._registry.queue.key(first))
        allocated = [transfer for transfer in self._holding if transfer.state is IncomingState.ALLOCATED]
        grants = tuple([transfer for transfer in allocated if not transfer.request.moving])
        for transfer in grants:
            transfer.move(IncomingState.GRANTED)
        return grants

    def revocations(self) -> tuple[IncomingTransfer, ...]:
        """Returns granted transfers whose blocks are needed here; the caller revokes them.

        They keep their blocks until the source answers: `on_revoked`, or `on_written` if it had started to write.
        A fetch is not granted again.
        """
        revocations, self._revocations = self._revocations, []
        return tuple(revocations)

    def on_revoked(self, transfer: IncomingTransfer) -> None:
        """The source returned the grant and has written nothing: its blocks are freed, and the transfer waits again.

        Ignored unless the transfer was being revoked.
        """
        if transfer.state is IncomingState.REVOKING:
            self._requeue(transfer)

    def on_written(self, transfer: IncomingTransfer) -> None:
        """The source has started to write: the grant can no longer be revoked. Repeated and late calls are ignored."""
        if not (transfer.over or transfer.state is IncomingState.WRITING):
            transfer.move(IncomingState.WRITING)
            self._forget_revocation(transfer)

    def adopt(
        self,
        transfer: IncomingTransfer,
        computed: int,
        sampled: Mapping[int, Sequence[Sampled]],
        firsts: Sequence[int] | None = None,
    ) -> tuple[Emission, ...]:
        """All KV was received: the sequence runs here from now on, as one request per choice.

        KV of the first `computed` tokens is in the transfer's blocks. `sampled[choice]` are the tokens that follow
        `transfer.request.tokens`; this worker emits them. Several choices either all have tokens (they fork now) or
        none (they fork after the prompt). In groups with a window, blocks from `firsts` on were received or cached;
        None: only the ones that the next token sees. Returns the emissions, with `finish` if a sequence has ended
        already. Raises ValueError, without changes, if KV or tokens do not match the transfer.
        """
        request = transfer.request
        follow = [len(sampled.get(choice, ())) for choice in request.choices]
        if len(follow) > 1 and any(follow) and not all(follow):
            raise ValueError("some choices have a first token and some have none")
        shared = len(request.tokens) + (follow[0] if len(follow) == 1 else 0)
        if not 0 <= computed <= min(shared, len(transfer.blocks) * self._limits.block_size):
            raise ValueError(f"KV of {computed} tokens; {shared} are shared, {len(transfer.blocks)} blocks reserved")
        received = max(computed, transfer.cached * self._limits.block_size)
        computed = self._rewound(received, len(request.tokens) + min(follow))
        firsts = firsts if firsts is not None else self._tables.first_blocks(received)
        self._check_windows(transfer, firsts, computed)
        self._end(transfer, IncomingState.ADOPTED)
        request.blocks, transfer.blocks = transfer.blocks, []
        request.windows, transfer.windows = transfer.windows, ()
        request.stored = transfer.cached
        request.room, request.handed_off = None, True
        request.computed = request.farthest = computed
        if computed < received:
            self._tables.shorten(request)
        self._tables.move_windows(request, firsts)  # earlier blocks may not have been written
        self._registry.run(request)
        return tuple(self._deliver(request, sampled))

    def keep(self, transfer: IncomingTransfer, computed: int, firsts: Sequence[int]) -> None:
        """A fetch has ended: the blocks of the first `computed` tokens are cached here from now on.

        `firsts` as for `adopt`.
        """
        self._end(transfer, IncomingState.ADOPTED)
        request = transfer.request
        request.blocks, transfer.blocks = transfer.blocks, []
        request.windows, transfer.windows = transfer.windows, ()
        request.stored, request.computed = transfer.cached, max(computed, transfer.cached * self._limits.block_size)
        self._tables.move_windows(request, firsts)
        self._tables.store(request)
        self._tables.release(request)

    def abandon(self, transfer: IncomingTransfer) -> None:
        """Ends a cancelled or failed transfer. Blocks that its source may write to are quarantined until `on_released`.

        Ignored if the transfer is over.
        """
        if transfer.over:
            return
        if transfer.state is IncomingState.PENDING:
            self._pending = [entry for entry in self._pending if entry[1] is not transfer]
            transfer.move(IncomingState.ABANDONED)
        elif transfer.state is IncomingState.ALLOCATED:
            self._end(transfer, IncomingState.ABANDONED)
            self._free(transfer)
        else:
            self._end(transfer, IncomingState.QUARANTINED)
            for blocks in transfer.take_back():
                self._tables.pool.release(blocks)
            transfer.blocks, transfer.windows = transfer.all_blocks, ()
            self._tables.pool.quarantine(transfer.blocks)
            self._holding.append(transfer)

    def on_released(self, transfer: IncomingTransfer) -> None:
        """No write can reach the abandoned transfer's blocks any more: frees them."""
        if transfer.state is IncomingState.QUARANTINED:
            transfer.move(IncomingState.ABANDONED)
            self._holding.remove(transfer)
            self._tables.pool.readmit(transfer.blocks)
            transfer.blocks = []

    # ── for the planner ──

    def grant_before(self, key: Key | None) -> bool:
        """Allocates blocks for pending transfers that come before `key`, in order; False if one of them must wait."""
        while self._pending and (key is None or self._pending[0][0] < key):
            if not self._allocate(self._pending[0][1]):
                return False
            del self._pending[0]
        return True

    def reclaim(self, lacking: int) -> None:
        """Revokes grants without writes, newest first, until `lacking` blocks will become free.

        Blocks of transfers that were not granted yet are freed immediately; these transfers wait again.
        """
        coming = sum(
            transfer.fresh
            for transfer in self._holding
            if transfer.state in (IncomingState.REVOKING, IncomingState.QUARANTINED)
        )
        for transfer in reversed(self._holding.copy()):
            if coming >= lacking:
                break
            if transfer.state is IncomingState.ALLOCATED:
                coming += transfer.fresh
                self._requeue(transfer)
            elif transfer.state is IncomingState.GRANTED:
                coming += transfer.fresh
                transfer.move(IncomingState.REVOKING)
                self._revocations.append(transfer)

    def check_integrity(self) -> None:
        """Raises AssertionError if a transfer's state does not match its blocks, slots and queue entry."""
        assert all(transfer.state is IncomingState.PENDING for _, transfer in self._pending)
        assert all(transfer.state is IncomingState.REVOKING for transfer in self._revocations)
        holding = [transfer for transfer in self._holding if not transfer.over]
        quarantined = [transfer for transfer in self._holding if transfer.state is IncomingState.QUARANTINED]
        assert len(holding) + len(quarantined) == len(self._holding), "a transfer that is over is held"
        assert self._admission.reserved == {transfer.request for transfer in holding if not transfer.fetch}
        assert self._tables.pool.counts().quarantined == sum(len(transfer.blocks) for transfer in quarantined)

    # ── internals ──

    def _allocate(self, transfer: IncomingTransfer) -> bool:
        request = transfer.request
        known = len(request.tokens)
        matched = self._tables.match(request, known // self._limits.block_size)
        reserved = self._limits.reserved_tokens(request)
        blocks, held = self._limits.blocks_for(reserved), self._limits.sizes.decoding(reserved)
        growth = self._admission.growth(request, held)
        if not self._admission.make_room(request, matched, blocks, growth):
            return False
        self._open(transfer, matched, blocks)
        request.reserved_blocks = held + growth.blocks
        self._admission.reserve(request)
        return True

    def _open(self, transfer: IncomingTransfer, matched: CachedPrefix, blocks: int) -> None:
        request = transfer.request
        transfer.move(IncomingState.ALLOCATED)
        self._tables.open(request, matched, blocks)
        transfer.blocks, request.blocks = request.blocks, []
        transfer.windows, request.windows = request.windows, ()
        transfer.cached = matched.count
        self._holding.append(transfer)

    def _queue(self, transfer: IncomingTransfer) -> None:
        key = self._registry.queue.key(transfer.request)
        insort(self._pending, (key, transfer), key=lambda entry: entry[0])

    def _requeue(self, transfer: IncomingTransfer) -> None:
        """Frees the transfer's blocks, to which no source writes, and queues it again; a fetch ends."""
        self._end(transfer, IncomingState.ABANDONED if transfer.fetch else IncomingState.PENDING)
        self._free(transfer)
        if not transfer.fetch:
            self._queue(transfer)

    def _end(self, transfer: IncomingTransfer, state: IncomingState) -> None:
        """Ends the reservation of blocks and slots for the transfer's sequence."""
        transfer.move(state)
        self._holding.remove(transfer)
        self._forget_revocation(transfer)
        self._admission.unreserve(transfer.request)

    def _free(self, transfer: IncomingTransfer) -> None:
        for blocks in (transfer.blocks, *[table.blocks for table in transfer.windows]):
            self._tables.pool.release(blocks)
        transfer.blocks, transfer.windows, transfer.cached = [], (), 0

    def _forget_revocation(self, transfer: IncomingTransfer) -> None:
        if transfer in self._revocations:
            self._revocations.remove(transfer)

    def _rewound(self, computed: int, known: int) -> int:
        """Returns `computed`, or less, so that at least one of `known` tokens is left to compute.

        If necessary it goes back to the beginning of a block, so that no cached block is written to.
        """
        return computed if computed < known else (known - 1) // self._limits.block_size * self._limits.block_size

    def _check_windows(self, transfer: IncomingTransfer, firsts: Sequence[int], computed: int) -> None:
        """Raises ValueError if a window, with blocks from `firsts` on, lacks KV for the token after `computed`."""
        needed = self._tables.first_blocks(computed)
        for table, first, least in zip(transfer.windows, firsts, needed, strict=True):
            if least < max(table.first, first):
                raise ValueError(f"a window begins with block {max(table.first, first)}; block {least} is needed")
