"""Sequences that leave for other workers: prefills for a hand-off, and moves of running ones."""

from legato_engine.request import Request, State
from legato_engine.scheduler.block_tables import Ledger
from legato_engine.scheduler.request_registry import Residents
from legato_engine.scheduler.results import Frozen


class Outgoing:
    """While `request.sending`, its blocks are read by the transfer: it is not preempted and gives none of them up."""

    def __init__(self, residents: Residents, ledger: Ledger) -> None:
        self._residents = residents
        self._ledger = ledger

    def grant(self, request: Request) -> None:
        if request.state is State.ENDED or request.sending:
            return
        request.sending = True
        if request.state is State.WAITING:
            self._residents.queue.remove(request)
        if request.state in (State.WAITING, State.PARKED):
            self._residents.wait(request)

    def withdraw(self, request: Request) -> None:
        if request.state is State.WAITING:
            self._residents.queue.remove(request)
        request.sending = False
        if request.state is State.WAITING:
            self._residents.wait(request)
        elif request.state is State.COMPUTED:
            self._residents.computed(request)
        elif request.state is State.ENDED:
            self._residents.end(request)

    def release(self, request: Request) -> None:
        request.sending = False
        self._residents.end(request)

    def begin_move(self, request: Request, blocks: int) -> None:
        if request.state is not State.RUNNING or request.room is not None or len(request.choices) > 1:
            raise ValueError("only one running sequence can move")
        request.sending = True
        request.move_blocks = blocks

    def freeze(self, request: Request) -> Frozen | None:
        if request.state is not State.RUNNING:
            return None
        request.frozen = True
        if self._ledger.in_flight(request):
            return None
        size = self._ledger.block_size
        blocks = min(-(-request.computed // size), request.move_blocks)
        computed = min(request.computed, blocks * size)
        return Frozen(tuple(request.tokens), computed, tuple(request.blocks[:blocks]))

    def unfreeze(self, request: Request) -> None:
        if request.state is State.ENDED:
            self.release(request)
            return
        request.sending = request.frozen = False
