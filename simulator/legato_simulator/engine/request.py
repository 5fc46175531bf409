"""A request on its way through the simulated service."""

import heapq
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field

from legato_engine.policy import SchedulerLimits
from legato_simulator.workload.workload import Arrival

PERCENTILE = 95
ANSWERS = 256  # that count
LEAST_ANSWERS = 20  # below that, a percentile says nothing
DEFAULTS = SchedulerLimits(role="decode", block_size=16, max_length=1 << 24)  # of workers
GROWTH = DEFAULTS.growth_tokens  # of an answer that nothing else is known of


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """Times in seconds, lengths in tokens."""

    number: int
    arrival: Arrival
    known: float  # prompt, and output made before, of which a worker needs the KV
    uncached: int = 0  # of `known`, where it is computed
    computed: int = 0  # of `uncached`
    made: float = 0.0  # output, when it joined the worker that decodes it
    first: float | None = None  # when its first token was there
    progressed: float = 0.0  # time at which it last lost its KV, if it had output by then
    done: float | None = None

    @property
    def left(self) -> int:
        """Tokens to compute before it can decode."""
        return self.uncached - self.computed

    @property
    def ttft(self) -> float:
        """Seconds from arrival; infinite before."""
        return float("inf") if self.first is None else self.first - self.arrival.at

    @property
    def tpot(self) -> float:
        """Mean seconds of each later token; 0 of a single one."""
        if self.done is None or self.first is None:
            return float("inf")
        return (self.done - self.first) / max(1, self.arrival.output - 1)


@dataclass
class Ended:
    """What an event of a worker leaves to do."""

    prefilled: list[SimulatedRequest] = field(default_factory=list)
    finished: list[SimulatedRequest] = field(default_factory=list)
    preempted: list[SimulatedRequest] = field(default_factory=list)


class Answers:
    """How long answers become: the 95th percentile of the latest, as workers expect it (`scheduler.output_lengths`)."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []
        self.usual: int | None = None

    def ended(self, tokens: int) -> None:
        """One has so many tokens."""
        self._latest.append(tokens)
        insort(self._sorted, tokens)
        if len(self._latest) > ANSWERS:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        count = len(self._sorted)
        if count >= LEAST_ANSWERS:
            self.usual = self._sorted[-(-count * PERCENTILE // 100) - 1]

    def expected(self, made: float = 0.0) -> float:
        """Tokens that one with so many will still get."""
        return self.usual - made if self.usual is not None and self.usual > made else GROWTH


class RecentPrefixes:
    """Which prefixes a worker's KV cache holds, those used last. Ids as in `Arrival.blocks`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ids: dict[int, None] = {}  # the latest last

    def matched(self, ids: tuple[int, ...]) -> int:
        """How many of the first ids are there."""
        for count, each in enumerate(ids):
            if each not in self._ids:
                return count
        return len(ids)

    def add(self, ids: tuple[int, ...]) -> None:
        """They were used now. The end of a prefix is forgotten before its beginning."""
        for each in reversed(ids):
            self._ids.pop(each, None)
            self._ids[each] = None
        while len(self._ids) > self._most:
            del self._ids[next(iter(self._ids))]


class Rows:
    """Sequences that decode on one worker: each gets a token in every step.

    `steps` counts these, also parts of one, so a row ends when it reaches a number known beforehand.
    """

    def __init__(self) -> None:
        self._ends: list[tuple[float, int, SimulatedRequest]] = []
        self._joined: dict[SimulatedRequest, float] = {}
        self.steps = 0.0
        self.context = 0.0  # tokens of all rows

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, request: SimulatedRequest) -> None:
        heapq.heappush(self._ends, (self.steps + request.arrival.output - request.made, request.number, request))
        self._joined[request] = self.steps
        self.context += request.known

    def advance(self, steps: float) -> None:
        self.steps += steps
        self.context += steps * len(self._ends)

    @property
    def until_end(self) -> float:
        """Steps until the next one ends; there must be one."""
        return max(0.0, self._ends[0][0] - self.steps)

    def ended(self) -> list[SimulatedRequest]:
        """Takes out those that have all their tokens."""
        found = []
        while self._ends and self._ends[0][0] <= self.steps + 1e-6:
            request = heapq.heappop(self._ends)[2]
            self._leave(request)
            found.append(request)
        return found

    def remove(self, request: SimulatedRequest) -> None:
        """Takes one out, before its end."""
        self._ends = [entry for entry in self._ends if entry[2] is not request]
        heapq.heapify(self._ends)
        self._leave(request)

    def newest(self) -> SimulatedRequest:
        """Who joined last; there must be one."""
        return next(reversed(self._joined))

    def all(self) -> list[SimulatedRequest]:
        """In the order in which they joined."""
        return list(self._joined)

    def growth(self, answers: Answers) -> float:
        """Tokens that all of them will still get, as is expected."""
        usual, steps = answers.usual, self.steps
        if usual is None:
            return float(GROWTH * len(self._joined))
        made = [request.made + steps - joined for request, joined in self._joined.items()]
        return sum([usual - each if usual > each else GROWTH for each in made])

    def _leave(self, request: SimulatedRequest) -> None:
        passed = self.steps - self._joined.pop(request)
        request.made += passed
        request.known += passed
        self.context = self.context - request.known if self._joined else 0.0
