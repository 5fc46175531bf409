"""A simulated request, and the state of decoding sequences in the fluid engine."""

import heapq
from dataclasses import dataclass, field

from legato_engine.policy import OutputLengthWindow, SchedulerLimits
from legato_simulator.workload.workload import Arrival

DEFAULTS = SchedulerLimits(role="decode", block_size=16, max_length=1 << 24)  # limits of workers
GROWTH = DEFAULTS.growth_tokens  # expected tokens without any other knowledge


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """The progress of one request. Times in seconds, lengths in tokens."""

    number: int
    arrival: Arrival
    known: float  # prompt and earlier output, whose KV a worker needs
    uncached: int = 0  # tokens of `known` that its worker must compute
    computed: int = 0  # tokens of `uncached` so far
    made: float = 0.0  # output tokens when it joined its decode worker
    first: float | None = None  # time of the first token
    progressed: float = 0.0  # time when it last lost its KV, if it had output by then
    done: float | None = None

    @property
    def left(self) -> int:
        """Tokens left to compute before it can decode."""
        return self.uncached - self.computed

    @property
    def ttft(self) -> float:
        """Seconds from arrival to the first token; infinite before it."""
        return float("inf") if self.first is None else self.first - self.arrival.at

    @property
    def tpot(self) -> float:
        """Mean seconds per later token; 0 for a single token."""
        if self.done is None or self.first is None:
            return float("inf")
        return (self.done - self.first) / max(1, self.arrival.output - 1)


@dataclass
class Changed:
    """Requests whose state an event of a worker changed."""

    prefilled: list[SimulatedRequest] = field(default_factory=list)
    finished: list[SimulatedRequest] = field(default_factory=list)
    preempted: list[SimulatedRequest] = field(default_factory=list)


class Answers(OutputLengthWindow):
    """Expected lengths of answers, as an engine estimates them."""

    @property
    def most_expected(self) -> float:
        """The most tokens that any answer is expected to have left."""
        return max(GROWTH, self.percentile or 0)


class RecentPrefixes:
    """The most recently used prefixes, which a worker's KV cache holds. Ids as in `Arrival.blocks`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ids: dict[int, None] = {}  # the latest last

    def matched(self, ids: tuple[int, ...]) -> int:
        """Returns the number of leading ids that are cached."""
        for count, each in enumerate(ids):
            if each not in self._ids:
                return count
        return len(ids)

    def add(self, ids: tuple[int, ...]) -> None:
        """Marks ids as used now. The end of a prefix is evicted before its beginning."""
        for each in reversed(ids):
            self._ids.pop(each, None)
            self._ids[each] = None
        while len(self._ids) > self._most:
            del self._ids[next(iter(self._ids))]


class Rows:
    """Sequences that decode on one worker: each gets a token in every step.

    `steps` counts steps, including fractions, so a row ends at a value that is known in advance.
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
        """Steps until the next row ends. There must be one."""
        return max(0.0, self._ends[0][0] - self.steps)

    def ended(self) -> list[SimulatedRequest]:
        """Removes and returns the rows that have all their tokens."""
        finished = []
        while self._ends and self._ends[0][0] <= self.steps + 1e-6:
            request = heapq.heappop(self._ends)[2]
            self._leave(request)
            finished.append(request)
        return finished

    def remove(self, request: SimulatedRequest) -> None:
        """Removes a row before its end."""
        self._ends = [entry for entry in self._ends if entry[2] is not request]
        heapq.heapify(self._ends)
        self._leave(request)

    def newest(self) -> SimulatedRequest:
        """Returns the row that joined last. There must be one."""
        return next(reversed(self._joined))

    def all(self) -> list[SimulatedRequest]:
        """Returns all rows in order of joining."""
        return list(self._joined)

    def growth(self, answers: Answers, entering: int, ends: bool = True) -> float:
        """Returns the most further tokens that all rows and `entering` ones are expected to need at one time.

        That is just before an end, as in the production scheduler. Rows that are longer than expected do not end soon;
        without `ends`, none does.
        """
        usual, steps = answers.percentile, self.steps
        if usual is None:
            return float(GROWTH * (len(self._joined) + entering))
        made = [request.made + steps - joined for request, joined in self._joined.items()]
        within = [(usual - each, each, 1) for each in made if each < usual]
        longer, count = len(made) - len(within), len(within) + entering
        if not ends:
            return sum([left for left, _, _ in within]) + usual * entering + GROWTH * longer
        within += [(usual, 0.0, entering), (GROWTH, 0.0, 0)]
        most = freed = 0.0
        for left, each, ended in sorted(within):
            most = max(most, left * count + min(left, GROWTH) * longer - freed)
            freed, count = freed + each, count - ended
        return most

    def _leave(self, request: SimulatedRequest) -> None:
        passed = self.steps - self._joined.pop(request)
        request.made += passed
        request.known += passed
        self.context = self.context - request.known if self._joined else 0.0
