"""How long answers become, as seen here, so that admission can leave room for those that run."""

from bisect import bisect_left, insort
from collections import deque

from legato_engine.scheduler.request import Request

PERCENTILE = 95
WINDOW = 256  # answers of a class that count
LEAST_ANSWERS = 20  # below that, a percentile says nothing
MOST_CLASSES = 256  # clients choose priorities, so there are as many classes as they like

Class = tuple[str, bool, int]


class OutputLengths:
    """Output tokens of the latest answers by class: the adapter, whether the sequence was prefilled elsewhere, and its
    priority. Of more than MOST_CLASSES classes, those that ended an answer last are known."""

    def __init__(self) -> None:
        self._classes: dict[Class, _Window] = {}

    def ended(self, request: Request) -> None:
        """No more tokens follow: it finished, or its gateway cancelled it.

        Gateways cancel at a stop string, and also when a client leaves or is too slow, at a deadline, and when they
        stop; a `Cancel` does not say which. All count: without stop strings, a service whose answers end by them would
        learn nothing, and after any of these the blocks are free, which is what admission asks for.
        """
        if request.outputs:
            self._add(request)

    def cut_off(self, request: Request) -> None:
        """Its deadline passed here, or its gateway is gone: the answer would have had at least so many tokens. That
        counts if it is more than usual, and else says nothing: all that a gateway leaves behind would make answers seem
        short."""
        usual = self.usual(request)
        if usual is not None and request.outputs > usual:
            self._add(request)

    def usual(self, request: Request) -> int | None:
        """As many tokens as 95 of 100 answers of its class have at most; None while too few are known."""
        window = self._classes.get(_class(request))
        return None if window is None else window.percentile

    def _add(self, request: Request) -> None:
        kind = _class(request)
        window = self._classes.pop(kind, None) or _Window()
        window.add(request.outputs)
        self._classes[kind] = window
        if len(self._classes) > MOST_CLASSES:
            del self._classes[next(iter(self._classes))]


def _class(request: Request) -> Class:
    return (request.adapter, request.handed_off or request.room is not None, request.priority)


class _Window:
    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []
        self.percentile: int | None = None

    def add(self, tokens: int) -> None:
        self._latest.append(tokens)
        insort(self._sorted, tokens)
        if len(self._latest) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        count = len(self._sorted)
        if count >= LEAST_ANSWERS:
            self.percentile = self._sorted[-(-count * PERCENTILE // 100) - 1]
