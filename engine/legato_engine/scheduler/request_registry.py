"""All requests of this worker and their lives: the one place that changes a request's state."""

from bisect import insort
from collections.abc import Iterable, Iterator
from math import inf

from legato_engine.scheduler.block_tables import BlockTables
from legato_engine.scheduler.queue import WaitingQueue
from legato_engine.scheduler.request import Request, RequestState


class RequestRegistry:
    """Requests by id and by state. `running` is in order of precedence: higher priority first, then older first."""

    def __init__(self, tables: BlockTables, queue: WaitingQueue) -> None:
        self.queue = queue
        self.running: list[Request] = []
        self.parked: set[Request] = set()
        self._by_id: dict[str, list[Request]] = {}
        self._tables = tables
        self._number = 0
        self.preemptions = 0  # so far
        self.earliest_deadline = inf  # no deadline of a request or incoming transfer is before it

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

    # ── lives ──

    def arrive(self, request: Request, now: float) -> None:
        """It came just now, to be queued or reserved for: it gets its number."""
        self._number += 1
        request.number, request.arrival = self._number, now
        self.earliest_deadline = min(self.earliest_deadline, request.deadline)

    def look_at_deadlines(self, reserved: Iterable[Request]) -> None:
        """Find the earliest deadline anew, of the requests here that go on and of those `reserved` for."""
        alive = [request for request in self if request.state is not RequestState.ENDED]
        self.earliest_deadline = min((request.deadline for request in (*alive, *reserved)), default=inf)

    def wait(self, request: Request) -> None:
        """Queue it: new, preempted, or granted after it was parked."""
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
            self._tables.release(request)
        elif request.state is RequestState.PARKED:
            self.parked.remove(request)
        request.state = RequestState.WAITING
        full = (len(request.tokens) - 1) // self._tables.block_size
        cached = len(self._tables.match(request, full)) * self._tables.block_size
        request.uncached = len(request.tokens) - cached
        if request.tenant not in self.queue.tenants:
            self.queue.turns.come(request.tenant, self._present())
        self.queue.push(request)
        self._enter(request)

    def preempt(self, request: Request) -> None:
        """Take its blocks; it is recomputed later, from what is left of them in the cache."""
        request.preemptions += 1
        request.preempted += 1
        self.preemptions += 1
        self.wait(request)

    def run(self, request: Request) -> None:
        """It owns blocks from here on: it waited, was adopted or forked."""
        if request in self.queue:
            self.queue.begin(request)
        request.state = RequestState.RUNNING
        insort(self.running, request, key=_precedence)
        self._enter(request)

    def computed(self, request: Request) -> None:
        """A prefill for a hand-off is done: with a grant it keeps its blocks, else they are only cached."""
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
        if request.sending:
            request.state = RequestState.COMPUTED
            return
        request.state = RequestState.PARKED
        self.parked.add(request)
        self._tables.release(request)

    def end(self, request: Request) -> None:
        """It is over. Blocks that a peer is being sent stay with it until `end` is called without `sending`."""
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
        elif request.state is RequestState.WAITING:
            self.queue.remove(request)
        elif request.state is RequestState.PARKED:
            self.parked.remove(request)
        request.state = RequestState.ENDED
        if not request.sending:
            self._tables.release(request)
            self._leave(request)

    def rename(self, request: Request, id: str) -> None:
        """File it under another id."""
        self._leave(request)
        request.id = id
        self._enter(request)

    def _present(self) -> dict[str, float]:
        """The tenants with prompts here, and their virtual times: of a prompt that is being computed, when it began."""
        waiting = {tenant: self.queue.turns[tenant] for tenant in self.queue.tenants}
        return waiting | {r.tenant: r.virtual_start for r in self.running if r.remaining > 1}

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
