"""In which order waiting requests start. Keys never change while a request waits, so aging costs nothing.

Keys order the requests of a tenant. Where several tenants wait, these take turns (`tenant_turns`).
"""

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop, heappush
from itertools import groupby

from legato_engine.scheduler.limits import SchedulerLimits
from legato_engine.scheduler.request import Request
from legato_engine.scheduler.tenant_turns import TenantTurns

PATIENCE_WEIGHT = 0.1  # seconds of waiting that one second until the deadline is worth
PATIENCE_LIMIT = 60.0  # deadlines farther away are all alike


class Tier(IntEnum):
    """What goes first whatever the policy."""

    GRANTED = 0  # a receiver holds blocks for it
    PREEMPTED = 1  # it ran already
    FRESH = 2


Key = tuple[int, float, int]


@dataclass(frozen=True, slots=True)
class Order:
    """The policy of a role: smaller keys start first.

    Decode and unified workers: first come, first served, where one step of priority is worth `limits.aging` seconds of
    waiting. Prefill workers add the time that the uncached tokens will take and a part of the time until the deadline:
    short and urgent ones go first, but whoever waits overtakes those that come later.
    """

    limits: SchedulerLimits

    def key(self, request: Request, tokens_per_second: float) -> Key:
        start = request.arrival - request.priority * self.limits.aging
        if self.limits.role == "prefill":
            start += request.uncached / tokens_per_second
            start += PATIENCE_WEIGHT * min(request.deadline - request.arrival, PATIENCE_LIMIT)
        return (self._tier(request), start, request.number)

    def advantage(self, request: Request, tokens_per_second: float) -> float:
        """Tokens of other tenants that its priority is worth."""
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
        self.tenants: Counter[str] = Counter()  # of those that wait
        self.turns = TenantTurns()
        self.tokens = 0
        self.tokens_per_second = 1000.0  # how fast prompts are computed here, as measured

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return iter([request for _, request in self._entries])

    def __contains__(self, request: Request) -> bool:
        return request in self._keys

    def push(self, request: Request) -> None:
        """`request.uncached` must be set: it is part of the order."""
        key = self._order.key(request, self.tokens_per_second)
        self._keys[request] = key
        insort(self._entries, (key, request), key=lambda entry: entry[0])
        self.tokens += request.uncached
        self.tenants[request.tenant] += 1

    def begin(self, request: Request) -> None:
        """It waits no more: it is computed from now on. KeyError when it does not wait."""
        self.remove(request)
        if request.turn is None:
            self.turns.begin(request, self._advantage(request))

    def remove(self, request: Request) -> None:
        """KeyError when it does not wait."""
        key = self._keys.pop(request)
        index = bisect_left(self._entries, key, key=lambda entry: entry[0])
        while self._entries[index][1] is not request:
            index += 1
        del self._entries[index]
        self.tokens -= request.uncached
        self.tenants[request.tenant] -= 1
        if not self.tenants[request.tenant]:
            del self.tenants[request.tenant]

    def in_turn(self) -> Iterator[Request]:
        """In the order in which they are to begin, while those that were given out may begin."""
        if len(self.tenants) <= 1:
            yield from self
            return
        for _, entries in groupby(self._entries.copy(), lambda entry: entry[0][0]):
            yield from self._tenants_in_turn(request for _, request in entries)

    def turn(self, request: Request) -> float:
        """When its turn is among the prompts of all tenants, waiting or begun."""
        return self.turns.turn(request, self._advantage(request)) if request.turn is None else request.turn

    def _tenants_in_turn(self, requests: Iterable[Request]) -> Iterator[Request]:
        waiting: dict[str, deque[Request]] = {}
        for request in requests:
            waiting.setdefault(request.tenant, deque()).append(request)
        heads = [(self.turn(queue[0]), queue[0].number, queue) for queue in waiting.values()]
        heapify(heads)
        while heads:
            _, _, queue = heappop(heads)
            yield queue.popleft()
            if queue:
                heappush(heads, (self.turn(queue[0]), queue[0].number, queue))

    def _advantage(self, request: Request) -> float:
        return self._order.advantage(request, self.tokens_per_second)

    def key(self, request: Request) -> Key:
        return self._order.key(request, self.tokens_per_second)

    def measured(self, tokens: int, seconds: float) -> None:
        """A step computed `tokens` prompt tokens in `seconds`."""
        if tokens and seconds > 0:
            self.tokens_per_second += 0.2 * (tokens / seconds - self.tokens_per_second)
