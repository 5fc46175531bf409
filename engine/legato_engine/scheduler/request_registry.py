"""All requests of this worker and their lives: the one place that changes a request's state."""

from bisect import insort
from collections.abc import Iterator

from legato_engine.request import Request, State
from legato_engine.scheduler.block_tables import Ledger
from legato_engine.scheduler.queue import WaitingQueue


class Residents:
    """Requests by id and by state. `running` is in order of precedence: higher priority first, then older first."""

    def __init__(self, ledger: Ledger, queue: WaitingQueue) -> None:
        self.queue = queue
        self.running: list[Request] = []
        self.parked: set[Request] = set()
        self._by_id: dict[str, list[Request]] = {}
        self._ledger = ledger
        self._number = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_id.values()))

    def __iter__(self) -> Iterator[Request]:
        """All of them, ended ones whose blocks a peer is still sent included."""
        return (request for requests in self._by_id.values() for request in requests)

    def of(self, id: str) -> tuple[Request, ...]:
        return tuple(self._by_id.get(id, ()))

    def slots(self) -> int:
        """How many sequences the running requests are, or will be once they forked."""
        return sum([len(request.choices) for request in self.running])

    def ungranted(self) -> int:
        """Prefills for a hand-off that are parked, or are computed now, without a grant."""
        return len(self.parked) + sum(request.ungranted for request in self.running)

    def number(self) -> int:
        """The next arrival's number."""
        self._number += 1
        return self._number

    # ── lives ──

    def wait(self, request: Request) -> None:
        """Queue it: new, preempted, or granted after it was parked."""
        if request.state is State.RUNNING:
            self.running.remove(request)
            self._ledger.release(request)
        elif request.state is State.PARKED:
            self.parked.remove(request)
        request.state = State.WAITING
        full = (len(request.tokens) - 1) // self._ledger.block_size
        cached = len(self._ledger.match(request, full)) * self._ledger.block_size
        request.uncached = len(request.tokens) - cached
        self.queue.push(request)
        self._enter(request)

    def preempt(self, request: Request) -> None:
        """Take its blocks; it is recomputed later, from what is left of them in the cache."""
        request.preemptions += 1
        self.wait(request)

    def run(self, request: Request) -> None:
        """It owns blocks from here on: it waited, was adopted or forked."""
        if request in self.queue:
            self.queue.remove(request)
        request.state = State.RUNNING
        insort(self.running, request, key=_precedence)
        self._enter(request)

    def computed(self, request: Request) -> None:
        """A prefill for a hand-off is done: with a grant it keeps its blocks, else they are only cached."""
        if request.state is State.RUNNING:
            self.running.remove(request)
        if request.sending:
            request.state = State.COMPUTED
            return
        request.state = State.PARKED
        self.parked.add(request)
        self._ledger.release(request)

    def end(self, request: Request) -> None:
        """It is over. Blocks that a peer is being sent stay with it until `end` is called without `sending`."""
        if request.state is State.RUNNING:
            self.running.remove(request)
        elif request.state is State.WAITING:
            self.queue.remove(request)
        elif request.state is State.PARKED:
            self.parked.remove(request)
        request.state = State.ENDED
        if not request.sending:
            self._ledger.release(request)
            self._leave(request)

    def rename(self, request: Request, id: str) -> None:
        """File it under another id."""
        self._leave(request)
        request.id = id
        self._enter(request)

    def _enter(self, request: Request) -> None:
        same = self._by_id.setdefault(request.id, [])
        if request not in same:
            same.append(request)

    def _leave(self, request: Request) -> None:
        same = self._by_id.get(request.id, [])
        if request in same:
            same.remove(request)
            if not same:
                del self._by_id[request.id]


def _precedence(request: Request) -> tuple[int, int]:
    return (-request.priority, request.number)
