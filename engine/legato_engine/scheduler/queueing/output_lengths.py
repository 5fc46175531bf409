"""Estimates the output length of requests from recent answers, so that admission reserves room for their growth."""

from bisect import bisect_left, insort
from collections import deque

from legato_engine.scheduler.requests.request import Request

PERCENTILE = 95
WINDOW = 256  # latest answers of a class
LEAST_ANSWERS = 20  # with fewer, the percentile is meaningless
MOST_CLASSES = 256  # clients choose priorities, so the number of classes needs a limit

Class = tuple[str, bool, int]


class OutputLengthEstimator:
    """Output tokens of the latest answers by class: adapter, prefilled elsewhere or not, priority.

    Keeps the MOST_CLASSES classes whose answers ended last.
    """

    def __init__(self) -> None:
        self._classes: dict[Class, OutputLengthWindow] = {}

    def add_ended(self, request: Request) -> None:
        """Counts a request that finished or was cancelled.

        Gateways cancel at a stop string, and also when a client leaves or is too slow, at a deadline, and when they
        stop; a `Cancel` does not say which. All of them count: otherwise a service whose answers end with stop strings
        would learn nothing, and in each case the blocks become free, which is what admission needs to predict.
        """
        if request.outputs:
            self._add(request)

    def add_cut_off(self, request: Request) -> None:
        """Counts a request that its deadline or the loss of its gateway cut off, if it is longer than usual.

        Shorter ones do not count: all requests of a lost gateway would make answers seem short.
        """
        usual = self.usual(request)
        if usual is not None and request.outputs > usual:
            self._add(request)

    def usual(self, request: Request) -> int | None:
        """The 95th percentile of output tokens in the request's class; None while there are too few answers."""
        window = self._classes.get(_class(request))
        return None if window is None else window.percentile

    def _add(self, request: Request) -> None:
        kind = _class(request)
        window = self._classes.pop(kind, None) or OutputLengthWindow()
        window.add(request.outputs)
        self._classes[kind] = window
        if len(self._classes) > MOST_CLASSES:
            del self._classes[next(iter(self._classes))]


def _class(request: Request) -> Class:
    return (request.adapter, request.handed_off or request.room is not None, request.priority)


class OutputLengthWindow:
    """The 95th percentile of the latest answers, in tokens; None while there are too few."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []
        self.percentile: int | None = None

    def add(self, tokens: int) -> None:
        """Adds the length of an ended answer."""
        self._latest.append(tokens)
        insort(self._sorted, tokens)
        if len(self._latest) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        count = len(self._sorted)
        if count >= LEAST_ANSWERS:
            self.percentile = self._sorted[-(-count * PERCENTILE // 100) - 1]
