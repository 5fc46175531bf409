"""Sequences handed off to other workers: prefills, and migrations of running sequences."""

from collections.abc import Iterator
from operator import lt

from legato_engine.kvcache.window_table import WindowTable
from legato_engine.scheduler.handoff.transfers import OutgoingState, OutgoingTransfer, outgoing_of
from legato_engine.scheduler.requests.block_tables import BlockTables
from legato_engine.scheduler.requests.request import Request, RequestState
from legato_engine.scheduler.requests.request_registry import RequestRegistry
from legato_engine.scheduler.results import SequenceKV


class OutgoingHandoffs:
    """The sender's side of hand-offs.

    From `grant` until `commit`, `abort` or `withdraw`, a transfer's blocks are read: its request is not preempted and
    keeps them all.
    """

    def __init__(self, registry: RequestRegistry, tables: BlockTables) -> None:
        self._registry = registry
        self._tables = tables

    # ── begin ──

    def prefill(self, request: Request) -> OutgoingTransfer:
        """Begins the transfer of `request`, which has a room and ends here with its prompt."""
        assert request.room is not None
        request.outgoing = transfer = OutgoingTransfer(request, request.room, request.attempt)
        return transfer

    def migrate(self, request: Request, room: int, attempt: int) -> OutgoingTransfer:
        """Begins the migration of `request`, which goes on running here until its last part is sent.

        Raises ValueError unless it is a single running sequence that is not being migrated: a waiting one has no KV,
        and one that will fork has several successors.
        """
        if request.state is not RequestState.RUNNING or request.room is not None or len(request.choices) > 1:
            raise ValueError("only a single running sequence can be migrated")
        earlier = outgoing_of(request)
        if earlier is not None and not earlier.over:
            raise ValueError("the sequence is being migrated already")
        request.outgoing = transfer = OutgoingTransfer(request, room, attempt)
        return transfer

    # ── grants ──

    def grant(self, transfer: OutgoingTransfer, blocks: int, firsts: tuple[int, ...] = ()) -> None:
        """The receiver has room for the sequence's first `blocks` blocks, including those that it had cached.

        In groups with a window, its room begins with the blocks `firsts`.

        A parked prefill is queued again, before all others, and appears in `StepResult.prefilled` when its KV is
        restored; a migrating sequence goes on running. Both appear in `StepResult.advanced`. Raises ValueError, without
        changes, if the sequence has ended, a migrating one does not run, or a prefill does not fit.
        """
        request = transfer.request
        if transfer.migration and request.state is not RequestState.RUNNING:
            raise ValueError("the sequence is not running")
        if request.state is RequestState.ENDED:
            raise ValueError("the sequence has ended")
        if not transfer.migration and blocks * self._tables.block_size < len(request.tokens):
            raise ValueError("the grant is for another sequence: it is too small for this one")
        transfer.move(OutgoingState.GRANTED)
        transfer.capacity, transfer.firsts = blocks, firsts
        if request.state is RequestState.WAITING:
            self._registry.queue.remove(request)
        if request.state in (RequestState.WAITING, RequestState.PARKED):
            self._registry.wait(request)

    def withdraw(self, transfer: OutgoingTransfer) -> None:
        """The receiver revoked its grant, and nothing reads the blocks: the transfer is pending again.

        A computed prefill is parked until the next grant and appears in `prefilled` again after that.
        """
        request = transfer.request
        transfer.move(OutgoingState.PENDING)
        transfer.capacity = transfer.sent = 0
        if request.state is RequestState.WAITING:
            self._registry.queue.remove(request)
            self._registry.wait(request)
        elif request.state is RequestState.COMPUTED:
            self._registry.finish_prefill(request)
        elif request.state is RequestState.ENDED:
            self._registry.end(request)

    # ── ends ──

    def finish(self, transfer: OutgoingTransfer) -> SequenceKV | None:
        """Stops scheduling the sequence and returns its tokens and KV blocks to hand over.

        None while its step is in flight (call again after `Scheduler.process`), while its prompt is not computed, or if
        it has ended. Raises ValueError, without changes, if the window of its last token is not granted or not kept.
        """
        request = transfer.request
        if request.state is not (RequestState.RUNNING if transfer.migration else RequestState.COMPUTED):
            return None
        if self._tables.in_flight(request):
            if transfer.state is OutgoingState.GRANTED:
                transfer.move(OutgoingState.STOPPING)
            return None
        size = self._tables.block_size
        blocks = min(-(-request.computed // size), transfer.capacity)
        computed = min(request.computed, blocks * size)
        windows = tuple(self._windows(transfer, computed, blocks))
        transfer.move(OutgoingState.FINISHED)
        return SequenceKV(tuple(request.tokens), computed, tuple(request.blocks[:blocks]), windows)

    def is_behind(self, transfer: OutgoingTransfer) -> bool:
        """True if a migrating sequence that was preempted has still to reach the window that is granted."""
        request = transfer.request
        needed = self._tables.first_blocks(request.computed)
        return request.schedulable and any(map(lt, needed, transfer.firsts))

    def cancel(self, transfer: OutgoingTransfer) -> None:
        """Cancels the transfer. Blocks that are read stay until `abort` or `commit`."""
        if not transfer.over:
            transfer.move(OutgoingState.CANCELLED if transfer.keeping else OutgoingState.ABORTED)

    def commit(self, transfer: OutgoingTransfer) -> None:
        """The receiver owns the sequence: ends the request and frees its blocks."""
        transfer.move(OutgoingState.COMMITTED)
        self._registry.end(transfer.request)

    def abort(self, transfer: OutgoingTransfer) -> None:
        """Nothing reads the blocks any more. A prefill ends; a migrating sequence goes on here unless it has ended."""
        if transfer.state is OutgoingState.ABORTED:  # it was cancelled before it was granted
            return
        transfer.move(OutgoingState.ABORTED)
        if not transfer.migration or transfer.request.state is RequestState.ENDED:
            self._registry.end(transfer.request)

    def _windows(self, transfer: OutgoingTransfer, computed: int, blocks: int) -> Iterator[WindowTable]:
        """The blocks of each window that the token after `computed` sees. Raises ValueError."""
        tables, firsts = transfer.request.windows, transfer.firsts or (0,) * len(transfer.request.windows)
        for table, granted, first in zip(tables, firsts, self._tables.first_blocks(computed), strict=True):
            if first < max(granted, table.first):
                raise ValueError(
                    f"the window of its last token begins with block {first}, which is not granted or kept"
                )
            yield WindowTable(first, table.since(first).before(blocks))
