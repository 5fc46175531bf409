"""All requests of this worker: the only place that changes a request's state."""

from bisect import insort
from collections.abc import Iterable, Iterator
from math import inf

from legato_engine.scheduler.queueing.queue import WaitingQueue
from legato_engine.scheduler.requests.block_tables import BlockTables
from legato_engine.scheduler.requests.request import Request, RequestState


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
        self.earliest_deadline = inf  # a lower bound for the deadlines of all requests and incoming transfers

    def __len__(self) -> int:
        return sum(map(len, self._by_id.values()))

    def __iter__(self) -> Iterator[Request]:
        """All requests, including ended ones whose blocks are still sent to a peer."""
        return (request for requests in self._by_id.values() for request in requests)

    def by_id(self, id: str) -> tuple[Request, ...]:
        return tuple(self._by_id.get(id, ()))

    def used_slots(self) -> int:
        """Number of sequences that the running requests are, or will be after their forks."""
        return sum([len(request.choices) for request in self.running])

    def ungranted(self) -> int:
        """Number of prefills for hand-offs without a grant that are parked or being computed."""
        return len(self.parked) + sum(request.ungranted for request in self.running)

    # ── state changes ──

    def arrive(self, request: Request, now: float) -> None:
        """Numbers a request that has just arrived, before it is queued or reserved."""
        self._number += 1
        request.number, request.arrival = self._number, now
        self.earliest_deadline = min(self.earliest_deadline, request.deadline)

    def update_earliest_deadline(self, reserved: Iterable[Request]) -> None:
        """Recomputes the earliest deadline of the live requests and the `reserved` ones of incoming transfers."""
        alive = [request for request in self if request.state is not RequestState.ENDED]
        self.earliest_deadline = min((request.deadline for request in (*alive, *reserved)), default=inf)

    def wait(self, request: Request) -> None:
        """Queues a request that is new, preempted, or granted after it was parked."""
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
            self._tables.release(request)
        elif request.state is RequestState.PARKED:
            self.parked.remove(request)
        request.state = RequestState.WAITING
        full = (len(request.tokens) - 1) // self._tables.block_size
        cached = self._tables.match(request, full).count * self._tables.block_size
        request.uncached = len(request.tokens) - cached
        if request.tenant not in self.queue.tenants:
            self.queue.fair.arrive(request.tenant, self._active_times())
        self.queue.push(request)
        self._enter(request)

    def preempt(self, request: Request) -> None:
        """Frees the request's blocks and queues it; it is recomputed later, with blocks that are still cached."""
        request.preemptions += 1
        request.preempted += 1
        self.preemptions += 1
        self.wait(request)

    def run(self, request: Request) -> None:
        """Runs a request that has blocks now: it waited, was adopted or forked."""
        if request in self.queue:
            self.queue.begin(request)
        request.state = RequestState.RUNNING
        insort(self.running, request, key=_precedence)
        self._enter(request)

    def finish_prefill(self, request: Request) -> None:
        """A prefill for a hand-off is computed: with a grant it keeps its blocks, else they are only cached."""
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
        if request.sending:
            request.state = RequestState.COMPUTED
            return
        request.state = RequestState.PARKED
        self.parked.add(request)
        self._tables.release(request)

    def end(self, request: Request) -> None:
        """Ends a request. Blocks that are sent to a peer stay until `end` is called without `sending`."""
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
        """Changes the request's id."""
        self._leave(request)
        request.id = id
        self._enter(request)

    def _active_times(self) -> dict[str, float]:
        """Virtual times of tenants with prompts here; the start tag for a prompt that is being computed."""
        waiting = {tenant: self.queue.fair[tenant] for tenant in self.queue.tenants}
        return waiting | {r.tenant: r.start_tag for r in self.running if r.remaining > 1}

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
