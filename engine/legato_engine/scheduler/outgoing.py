"""Sequences that leave for other workers: prefills for a hand-off, and migrations of running ones."""

from legato_engine.request import Request, RequestState
from legato_engine.scheduler.block_tables import BlockTables
from legato_engine.scheduler.request_registry import RequestRegistry
from legato_engine.scheduler.results import Frozen


class OutgoingHandoffs:
    """The sender's side. While `request.sending`, the transfer reads its blocks: it is not preempted and gives none of
    them up until `release` (or `resume`)."""

    def __init__(self, registry: RequestRegistry, tables: BlockTables) -> None:
        self._registry = registry
        self._tables = tables

    def release(self, request: Request) -> None:
        """The hand-off is over, by a commit or by an abort after which nothing is sent: `request` and its blocks go.

        Also for a migrating request that ended before its migration did."""
        request.sending = False
        self._registry.end(request)

    # ── prefills ──

    def grant(self, request: Request) -> None:
        """The receiver granted blocks to `request`, which has a room. From here on its blocks stay until `release`;
        those complete now are `request.blocks[: request.full_blocks(block_size)]`.

        If it was parked it is queued again, before all others, and appears in `StepResult.prefilled` when its KV is
        back. Nothing happens to one that has ended."""
        if request.state is RequestState.ENDED or request.sending:
            return
        request.sending = True
        if request.state is RequestState.WAITING:
            self._registry.queue.remove(request)
        if request.state in (RequestState.WAITING, RequestState.PARKED):
            self._registry.wait(request)

    def withdraw(self, request: Request) -> None:
        """The receiver took its grant back, and nothing is read from `request`'s blocks: it is as if there had been no
        grant. If it is computed already, it is parked until the next grant and is in `prefilled` again after that."""
        if request.state is RequestState.WAITING:
            self._registry.queue.remove(request)
        request.sending = False
        if request.state is RequestState.WAITING:
            self._registry.wait(request)
        elif request.state is RequestState.COMPUTED:
            self._registry.computed(request)
        elif request.state is RequestState.ENDED:
            self._registry.end(request)

    # ── migrations of running sequences ──

    def begin_migration(self, request: Request, blocks: int) -> None:
        """The receiver has room for the first `blocks` blocks (those it had cached included).

        `request` goes on running, is not preempted, and appears in `StepResult.advanced`. Raises ValueError unless it
        is one running sequence: a waiting one has no KV, and one that will still fork has no single successor."""
        if request.state is not RequestState.RUNNING or request.room is not None or len(request.choices) > 1:
            raise ValueError("only one running sequence can be migrated")
        request.sending = True
        request.migration_blocks = blocks

    def freeze(self, request: Request) -> Frozen | None:
        """Schedule it no more. None while its step is in flight (call again after `Scheduler.process`) or when it has
        ended."""
        if request.state is not RequestState.RUNNING:
            return None
        request.frozen = True
        if self._tables.in_flight(request):
            return None
        size = self._tables.block_size
        blocks = min(-(-request.computed // size), request.migration_blocks)
        computed = min(request.computed, blocks * size)
        return Frozen(tuple(request.tokens), computed, tuple(request.blocks[:blocks]))

    def resume(self, request: Request) -> None:
        """The migration failed and nothing more is sent: the sequence goes on here. If it has ended, its blocks go."""
        if request.state is RequestState.ENDED:
            self.release(request)
            return
        request.sending = request.frozen = False
