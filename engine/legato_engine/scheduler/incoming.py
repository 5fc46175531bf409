"""Sequences whose KV comes from elsewhere: blocks are reserved, granted, written to, adopted or abandoned."""

from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence

from legato_engine.scheduler.admission import AdmissionControl
from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.block_tables import BlockTables
from legato_engine.scheduler.limits import RequestRejected, SchedulerLimits
from legato_engine.scheduler.queue import Key
from legato_engine.scheduler.request import Request
from legato_engine.scheduler.request_registry import RequestRegistry
from legato_engine.scheduler.results import Emission
from legato_engine.scheduler.transfers import IncomingState, IncomingTransfer
from legato_protocol.stream import Peer

Deliver = Callable[[Request, Mapping[int, Sequence[Sampled]]], list[Emission]]


class IncomingHandoffs:
    """The receiver's side. Transfers with blocks count as running: blocks and slots are their own."""

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
        self._holding: list[IncomingTransfer] = []  # those with blocks, quarantined ones included, oldest first
        self._revocations: list[IncomingTransfer] = []  # the caller does not know of them yet

    def __iter__(self) -> Iterator[IncomingTransfer]:
        """Those that are not over."""
        holding = [transfer for transfer in self._holding if not transfer.over]
        return iter([*(transfer for _, transfer in self._pending), *holding])

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def waiting(self) -> tuple[Request, ...]:
        """The sequences of transfers that wait for blocks, in order."""
        return tuple([transfer.request for _, transfer in self._pending])

    @property
    def granted_blocks(self) -> int:
        """Blocks that sources may write to, of transfers that are not over."""
        return sum([transfer.fresh for transfer in self._holding if not transfer.over])

    @property
    def idle(self) -> bool:
        return not (self._pending or self._holding)

    # ── life of a transfer ──

    def reserve(self, request: Request, source: Peer, now: float) -> IncomingTransfer:
        """Ask for blocks for a sequence whose KV comes from `source`; they are granted in order (see `grants`).

        Raises RequestRejected as `Scheduler.add` does."""
        self._limits.check(request, self._tables.pool.size)
        if len(self._pending) >= self._limits.max_waiting:
            raise RequestRejected("overloaded", f"{len(self._pending)} hand-offs wait for blocks already")
        self._registry.arrive(request, now)
        request.scored = request.prompt_len  # by its source
        transfer = IncomingTransfer(request, source)
        self._queue(transfer)
        return transfer

    def grants(self) -> tuple[IncomingTransfer, ...]:
        """Transfers with blocks of which the caller does not know, after allocating what can be allocated now. From
        here on their sources may write."""
        first = next((request for request in self._registry.queue if not request.paused), None)
        self.grant_before(None if first is None else self._registry.queue.key(first))
        grants = tuple([transfer for transfer in self._holding if transfer.state is IncomingState.ALLOCATED])
        for transfer in grants:
            transfer.move(IncomingState.GRANTED)
        return grants

    def revocations(self) -> tuple[IncomingTransfer, ...]:
        """Granted transfers whose blocks are needed here, since the last call, for the caller to revoke. They keep
        them until the source has answered: `revoked`, or `written` where it was too late."""
        revocations, self._revocations = self._revocations, []
        return tuple(revocations)

    def revoked(self, transfer: IncomingTransfer) -> None:
        """The source gave the grant back and has written nothing: the blocks are free, the transfer waits for others.

        Nothing happens to one that was not being revoked, or is no more."""
        if transfer.state is IncomingState.REVOKING:
            self._requeue(transfer)

    def written(self, transfer: IncomingTransfer) -> None:
        """The source has written something: the grant cannot be revoked any more. It may say so again, or too late."""
        if not (transfer.over or transfer.state is IncomingState.WRITING):
            transfer.move(IncomingState.WRITING)
            self._forget_revocation(transfer)

    def adopt(
        self, transfer: IncomingTransfer, computed: int, sampled: Mapping[int, Sequence[Sampled]]
    ) -> tuple[Emission, ...]:
        """All KV is here: the sequence runs here from now on, as one request per choice.

        KV of the first `computed` tokens is in the transfer's blocks. `sampled[choice]` are the tokens that follow
        those in `transfer.request.tokens`: what this worker has to emit. Several choices have either one or more
        each (they fork now) or none (they fork after the prompt). Returns their emissions, with `finish` where a
        sequence is over already. Raises ValueError for KV or tokens that do not match the transfer; nothing is changed
        then."""
        request = transfer.request
        follow = [len(sampled.get(choice, ())) for choice in request.choices]
        if len(follow) > 1 and any(follow) and not all(follow):
            raise ValueError("some choices have a first token and some have none")
        shared = len(request.tokens) + (follow[0] if len(follow) == 1 else 0)
        if not 0 <= computed <= min(shared, len(transfer.blocks) * self._limits.block_size):
            raise ValueError(f"KV of {computed} tokens; {shared} are shared, {len(transfer.blocks)} blocks reserved")
        self._end(transfer, IncomingState.ADOPTED)
        request.blocks, transfer.blocks = transfer.blocks, []
        request.stored = transfer.cached
        request.room, request.handed_off = None, True
        computed = max(computed, transfer.cached * self._limits.block_size)
        self._rewind(request, computed, len(request.tokens) + min(follow))
        self._registry.run(request)
        return tuple(self._deliver(request, sampled))

    def abandon(self, transfer: IncomingTransfer) -> None:
        """It was cancelled or has failed. Blocks that its source may write to are quarantined until `released`.

        One that is over stays as it is."""
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
            self._tables.pool.release(transfer.blocks[: transfer.cached])
            transfer.blocks, transfer.cached = transfer.blocks[transfer.cached :], 0
            self._tables.pool.quarantine(transfer.blocks)
            self._holding.append(transfer)

    def released(self, transfer: IncomingTransfer) -> None:
        """No write can reach this abandoned transfer's blocks any more: they are free."""
        if transfer.state is IncomingState.QUARANTINED:
            transfer.move(IncomingState.ABANDONED)
            self._holding.remove(transfer)
            self._tables.pool.readmit(transfer.blocks)
            transfer.blocks = []

    # ── asked by the planner ──

    def grant_before(self, key: Key | None) -> bool:
        """Give pending transfers that come before `key` their blocks, in order; False when one of them must wait."""
        while self._pending and (key is None or self._pending[0][0] < key):
            if not self._allocate(self._pending[0][1]):
                return False
            del self._pending[0]
        return True

    def reclaim(self, lacking: int) -> None:
        """Revoke grants that nobody has written to, newest first, until `lacking` blocks are on their way.

        Those nobody was told of wait again; their blocks are back at once."""
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
        """Raise AssertionError when a transfer's state is not that of its blocks, slots and place in the queue."""
        assert all(transfer.state is IncomingState.PENDING for _, transfer in self._pending)
        assert all(transfer.state is IncomingState.REVOKING for transfer in self._revocations)
        holding = [transfer for transfer in self._holding if not transfer.over]
        quarantined = [transfer for transfer in self._holding if transfer.state is IncomingState.QUARANTINED]
        assert len(holding) + len(quarantined) == len(self._holding), "a transfer that is over is held"
        assert self._admission.reserved == {transfer.request for transfer in holding}
        assert self._tables.pool.counts().quarantined == sum(len(transfer.blocks) for transfer in quarantined)

    # ── inside ──

    def _allocate(self, transfer: IncomingTransfer) -> bool:
        request = transfer.request
        known = len(request.tokens)
        matched = self._tables.match(request, known // self._limits.block_size)
        blocks = self._limits.blocks_for(self._limits.reserved(request))
        growth = self._admission.growth(request, blocks)
        if not self._admission.make_room(request, matched, blocks, growth):
            return False
        transfer.move(IncomingState.ALLOCATED)
        self._tables.open(request, matched, blocks)
        request.reserved_blocks = blocks + growth
        transfer.blocks, request.blocks = request.blocks, []
        transfer.cached = len(matched)
        self._admission.reserved.add(request)
        self._holding.append(transfer)
        return True

    def _queue(self, transfer: IncomingTransfer) -> None:
        key = self._registry.queue.key(transfer.request)
        insort(self._pending, (key, transfer), key=lambda entry: entry[0])

    def _requeue(self, transfer: IncomingTransfer) -> None:
        """Take its blocks, which no source writes to: it waits again."""
        self._end(transfer, IncomingState.PENDING)
        self._free(transfer)
        self._queue(transfer)

    def _end(self, transfer: IncomingTransfer, state: IncomingState) -> None:
        """It does not hold blocks and slots for its sequence any more."""
        transfer.move(state)
        self._holding.remove(transfer)
        self._forget_revocation(transfer)
        self._admission.reserved.discard(transfer.request)

    def _free(self, transfer: IncomingTransfer) -> None:
        self._tables.pool.release(transfer.blocks)
        transfer.blocks, transfer.cached = [], 0

    def _forget_revocation(self, transfer: IncomingTransfer) -> None:
        if transfer in self._revocations:
            self._revocations.remove(transfer)

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
