"""The order in which waiting requests start. Keys never change while a request waits, so aging costs nothing.

Keys order the requests of a tenant. Fair queueing orders the requests of different tenants (`fair_queueing`).
"""

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop, heappush
from itertools import groupby

from legato_engine.scheduler.queueing.fair_queueing import FairQueueing
from legato_engine.scheduler.requests.limits import SchedulerLimits
from legato_engine.scheduler.requests.request import Request

PATIENCE_WEIGHT = 0.1  # seconds of waiting that equal one second until the deadline
PATIENCE_LIMIT = 60.0  # seconds; later deadlines make no difference


class Tier(IntEnum):
    """Precedence before any policy."""

    GRANTED = 0  # a receiver has reserved blocks for it
    PREEMPTED = 1  # it has run before
    FRESH = 2


Key = tuple[int, float, int]


@dataclass(frozen=True, slots=True)
class Order:
    """The policy of a role: smaller keys start first.

    Decode and unified workers: first come, first served; one step of priority equals `limits.aging` seconds of waiting.
    Prefill workers add the time that the uncached tokens will take and a part of the time until the deadline: short and
    urgent requests go first, but one that has waited long enough goes before all later ones.
    """

    limits: SchedulerLimits

    def key(self, request: Request, tokens_per_second: float) -> Key:
        start = request.arrival - request.priority * self.limits.aging
        if self.limits.role == "prefill":
            start += request.uncached / tokens_per_second
            start += PATIENCE_WEIGHT * min(request.deadline - request.arrival, PATIENCE_LIMIT)
        return (self._tier(request), start, request.number)

    def advantage(self, request: Request, tokens_per_second: float) -> float:
        """Tokens of other tenants that the request's priority lets it overtake."""
        return request.priority * self.limits.aging * tokens_per_second

    def _tier(self, request: Request) -> Tier:
        if request.sending:
            return Tier.GRANTED
        return Tier.PREEMPTED if request.farthest and request.room is None else Tier.FRESH


class WaitingQueue:
    """Waiting requests in order. `tokens` is the sum of their uncached tokens."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._entries: list[tuple[Key, Request]] = []
        self._keys: dict[Request, Key] = {}
        self.tenants: Counter[str] = Counter()  # waiting requests of each
        self.fair = FairQueueing()
        self.tokens = 0
        self.tokens_per_second = 1000.0  # measured rate of prompts

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return iter([request for _, request in self._entries])

    def __contains__(self, request: Request) -> bool:
        return request in self._keys

    def push(self, request: Request) -> None:
        """Adds a request, whose `uncached` must be set: it is part of the order."""
        key = self._order.key(request, self.tokens_per_second)
        self._keys[request] = key
        insort(self._entries, (key, request), key=lambda entry: entry[0])
        self.tokens += request.uncached
        self.tenants[request.tenant] += 1

    def begin(self, request: Request) -> None:
        """Removes a request that starts now. KeyError if it does not wait."""
        self.remove(request)
        if request.finish_tag is None:
            self.fair.begin(request, self._advantage(request))

    def remove(self, request: Request) -> None:
        """Removes a request. KeyError if it does not wait."""
        key = self._keys.pop(request)
        index = bisect_left(self._entries, key, key=lambda entry: entry[0])
        while self._entries[index][1] is not request:
            index += 1
        del self._entries[index]
        self.tokens -= request.uncached
        self.tenants[request.tenant] -= 1
        if not self.tenants[request.tenant]:
            del self.tenants[request.tenant]

    def ordered(self) -> Iterator[Request]:
        """Yields requests in the order in which they should start. Yielded ones may start during the iteration."""
        if len(self.tenants) <= 1:
            yield from self
            return
        for _, entries in groupby(self._entries.copy(), lambda entry: entry[0][0]):
            yield from self._by_finish_tag(request for _, request in entries)

    def finish_tag(self, request: Request) -> float:
        """The request's finish tag among the prompts of all tenants, waiting or started."""
        if request.finish_tag is not None:
            return request.finish_tag
        return self.fair.finish_tag(request, self._advantage(request))

    def _by_finish_tag(self, requests: Iterable[Request]) -> Iterator[Request]:
        waiting: dict[str, deque[Request]] = {}
        for request in requests:
            waiting.setdefault(request.tenant, deque()).append(request)
        heads = [(self.finish_tag(queue[0]), queue[0].number, queue) for queue in waiting.values()]
        heapify(heads)
        while heads:
            _, _, queue = heappop(heads)
            yield queue.popleft()
            if queue:
                heappush(heads, (self.finish_tag(queue[0]), queue[0].number, queue))

    def _advantage(self, request: Request) -> float:
        return self._order.advantage(request, self.tokens_per_second)

    def key(self, request: Request) -> Key:
        return self._order.key(request, self.tokens_per_second)

    def measure(self, tokens: int, seconds: float) -> None:
        """A step computed `tokens` prompt tokens in `seconds`."""
        if tokens and seconds > 0:
            self.tokens_per_second += 0.2 * (tokens / seconds - self.tokens_per_second)
