"""Sequences that leave for other workers: prefills for a hand-off, and migrations of running ones."""

from legato_engine.scheduler.block_tables import BlockTables
from legato_engine.scheduler.request import Request, RequestState
from legato_engine.scheduler.request_registry import RequestRegistry
from legato_engine.scheduler.results import SequenceKV
from legato_engine.scheduler.transfers import OutgoingState, OutgoingTransfer, outgoing_of


class OutgoingHandoffs:
    """The sender's side. From `grant` on, a transfer's blocks are read: its request is not preempted and gives none of
    them up until `commit` or `abort`, or `withdraw`."""

    def __init__(self, registry: RequestRegistry, tables: BlockTables) -> None:
        self._registry = registry
        self._tables = tables

    # ── begin ──

    def prefill(self, request: Request) -> OutgoingTransfer:
        """`request`, which has a room, ends here with its prompt."""
        assert request.room is not None
        request.outgoing = transfer = OutgoingTransfer(request, request.room, request.attempt)
        return transfer

    def migrate(self, request: Request, room: int, attempt: int) -> OutgoingTransfer:
        """`request` runs on here until the last part of it is sent.

        Raises ValueError unless it is one running sequence that does not leave already: a waiting one has no KV, and
        one that will still fork has no single successor."""
        if request.state is not RequestState.RUNNING or request.room is not None or len(request.choices) > 1:
            raise ValueError("only one running sequence can be migrated")
        earlier = outgoing_of(request)
        if earlier is not None and not earlier.over:
            raise ValueError("the sequence is being migrated already")
        request.outgoing = transfer = OutgoingTransfer(request, room, attempt)
        return transfer

    # ── grants ──

    def grant(self, transfer: OutgoingTransfer, blocks: int) -> None:
        """The receiver has room for the sequence's first `blocks` blocks (those it had cached included).

        A prefill that was parked is queued again, before all others, and appears in `StepResult.prefilled` when its KV
        is back; a migrating sequence goes on running. Either appears in `StepResult.advanced`. Raises ValueError for a
        sequence that has ended or runs no more, and for a prefill that does not fit; nothing is changed then."""
        request = transfer.request
        if transfer.migration and request.state is not RequestState.RUNNING:
            raise ValueError("the sequence is not running")
        if request.state is RequestState.ENDED:
            raise ValueError("the sequence has ended")
        if not transfer.migration and blocks * self._tables.block_size < len(request.tokens):
            raise ValueError("the grant is for another sequence: it is too small for this one")
        transfer.move(OutgoingState.GRANTED)
        transfer.capacity = blocks
        if request.state is RequestState.WAITING:
            self._registry.queue.remove(request)
        if request.state in (RequestState.WAITING, RequestState.PARKED):
            self._registry.wait(request)

    def withdraw(self, transfer: OutgoingTransfer) -> None:
        """The receiver took its grant back, and nothing is read from the blocks: it is as if there had been no grant.

        A prefill that is computed already is parked until the next grant and is in `prefilled` again after that."""
        request = transfer.request
        transfer.move(OutgoingState.PENDING)
        transfer.capacity = transfer.sent = 0
        if request.state is RequestState.WAITING:
            self._registry.queue.remove(request)
            self._registry.wait(request)
        elif request.state is RequestState.COMPUTED:
            self._registry.computed(request)
        elif request.state is RequestState.ENDED:
            self._registry.end(request)

    # ── ends ──

    def finish(self, transfer: OutgoingTransfer) -> SequenceKV | None:
        """Schedule the sequence no more: all that is handed over of it.

        None while its step is in flight (call again after `Scheduler.process`), while its prompt is not computed, or
        when it has ended."""
        request = transfer.request
        if request.state is not (RequestState.RUNNING if transfer.migration else RequestState.COMPUTED):
            return None
        if self._tables.in_flight(request):
            if transfer.state is OutgoingState.GRANTED:
                transfer.move(OutgoingState.STOPPING)
            return None
        transfer.move(OutgoingState.FINISHED)
        size = self._tables.block_size
        blocks = min(-(-request.computed // size), transfer.capacity)
        computed = min(request.computed, blocks * size)
        return SequenceKV(tuple(request.tokens), computed, tuple(request.blocks[:blocks]))

    def cancel(self, transfer: OutgoingTransfer) -> None:
        """Nobody waits for it any more. Blocks that are read stay until `abort` (or `commit`)."""
        if not transfer.over:
            transfer.move(OutgoingState.CANCELLED if transfer.keeping else OutgoingState.ABORTED)

    def commit(self, transfer: OutgoingTransfer) -> None:
        """The receiver has all of it: the request and its blocks go."""
        transfer.move(OutgoingState.COMMITTED)
        self._registry.end(transfer.request)

    def abort(self, transfer: OutgoingTransfer) -> None:
        """Nothing is read from its blocks any more: a prefill is over, a migrating sequence goes on here. If it has
        ended, its blocks go."""
        if transfer.state is OutgoingState.ABORTED:  # it was cancelled before it was granted
            return
        transfer.move(OutgoingState.ABORTED)
        if not transfer.migration or transfer.request.state is RequestState.ENDED:
            self._registry.end(transfer.request)
