"""All sub-requests in progress: by id, worker and request, and the lines that wait for room on a worker."""

import itertools
from collections.abc import Callable, Iterator

from legato_gateway.relay.attempt_place import AttemptPlace
from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.relay.lifecycle import PLACED, Stage
from legato_gateway.relay.sub_request import SubRequest

OFFERS_PER_PASS = 64
MISSES_PER_PASS = 16


class WaitingLine:
    """Sub-requests in the order in which they are offered room.

    One that is offered too little goes to the end, so that it does not block the others. It is offered none again until
    `openings` changes.
    """

    def __init__(self) -> None:
        self._line: dict[SubRequest, None] = {}

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, sub: SubRequest) -> bool:
        return sub in self._line

    def __iter__(self) -> Iterator[SubRequest]:
        return iter(self._line)

    def add(self, sub: SubRequest) -> None:
        """Adds `sub` at the end, unless it is in line already."""
        self._line.setdefault(sub)

    def discard(self, sub: SubRequest) -> None:
        """Removes `sub` if it is in line."""
        self._line.pop(sub, None)

    def offer(self, openings: int, take: Callable[[SubRequest], bool]) -> None:
        """Lets the first in line `take` room. Bounded: in a long line, later passes reach the rest."""
        misses = 0
        for sub in list(itertools.islice(self._line, OFFERS_PER_PASS)):
            if sub not in self._line:
                continue  # it ended while an earlier one was offered room
            if sub.tried != openings and not take(sub):
                misses += 1
            if sub in self._line:
                self._line[sub] = self._line.pop(sub)
            if misses == MISSES_PER_PASS:
                return


class Registry:
    """Stores sub-requests and their places. `driver` decides about them."""

    def __init__(self) -> None:
        self.waiting = WaitingLine()  # without a worker
        self.leaving = WaitingLine()  # running on a worker that drains, and free to migrate
        self._by_id: dict[str, SubRequest] = {}
        self._at: dict[str, dict[SubRequest, None]] = {}  # by worker, in order of dispatch
        self._by_generation: dict[RunningGeneration, dict[SubRequest, None]] = {}
        self._parts: dict[str, dict[int, SubRequest]] = {}  # of those split while running: by old id, by choice

    def get(self, id: str) -> SubRequest | None:
        """Returns the sub-request of that id if it is in progress."""
        return self._by_id.get(id)

    def for_choice(self, id: str, choice: int) -> SubRequest | None:
        """Returns the sub-request that has this choice of the worker's `id`."""
        return self._by_id.get(id) or self._parts.get(id, {}).get(choice)

    def matching(self, id: str) -> list[SubRequest]:
        """Returns all sub-requests that a worker may mean by `id`."""
        sub = self._by_id.get(id)
        return [sub] if sub is not None else list(self._parts.get(id, {}).values())

    def at(self, worker: str) -> list[SubRequest]:
        """Returns the sub-requests on that worker."""
        return list(self._at.get(worker, ()))

    def sub_requests(self, generation: RunningGeneration) -> list[SubRequest]:
        """Returns the sub-requests of that request."""
        return list(self._by_generation.get(generation, ()))

    def generations(self) -> list[RunningGeneration]:
        """Returns all requests in progress."""
        return list(self._by_generation)

    def add(self, sub: SubRequest) -> None:
        """Adds a new sub-request."""
        self._by_id[sub.id] = sub
        self._by_generation.setdefault(sub.generation, {})[sub] = None
        self.staged(sub)

    def remove(self, sub: SubRequest) -> None:
        """Removes an ended sub-request."""
        self.place(sub, None)
        self.staged(sub)
        del self._by_id[sub.id]
        siblings = self._by_generation[sub.generation]
        del siblings[sub]
        if not siblings:
            del self._by_generation[sub.generation]
        if sub.parent:
            parts = self._parts[sub.parent]
            del parts[sub.choices[0]]
            if not parts:
                del self._parts[sub.parent]

    def staged(self, sub: SubRequest) -> None:
        """Updates the lines after its stage changed."""
        if sub.stage is Stage.WAITING:
            self.waiting.add(sub)
        else:
            self.waiting.discard(sub)
        if sub.stage is not Stage.DECODING:
            self.leaving.discard(sub)

    def place(self, sub: SubRequest, place: AttemptPlace | None, target: AttemptPlace | None = None) -> None:
        """Sets its workers."""
        before = sub.workers
        sub.place, sub.target = place, target
        after = sub.workers
        for worker in before - after:
            there = self._at[worker]
            del there[sub]
            if not there:
                del self._at[worker]
        for worker in after - before:
            self._at.setdefault(worker, {})[sub] = None

    def split(self, id: str, parts: list[SubRequest]) -> None:
        """Records that the running `id` became `parts`: its worker may use the old id for a while."""
        for part in parts:
            part.parent = id
        self._parts[id] = {part.choices[0]: part for part in parts}

    def check_integrity(self) -> None:
        """Raises AssertionError unless the indexes agree."""
        for worker, subs in self._at.items():
            assert subs, "a worker that holds nothing is remembered"
            assert all(worker in sub.workers for sub in subs), "a sub-request is filed at a worker that has none of it"
        for sub in self._by_id.values():
            self._check(sub)
        for line in (self.waiting, self.leaving):
            assert all(self._by_id.get(sub.id) is sub for sub in line), "an ended sub-request waits"
        assert sum(map(len, self._by_generation.values())) == len(self._by_id), "requests and sub-requests differ"
        for id, parts in self._parts.items():
            assert parts, "a split of which nothing is left is remembered"
            assert id not in self._by_id, "a sub-request that was split goes on"
            assert all(self._by_id.get(sub.id) is sub and sub.parent == id for sub in parts.values()), "a part is over"

    def _check(self, sub: SubRequest) -> None:
        assert sub.stage is not Stage.ENDED, "an ended sub-request is kept"
        assert all(sub in self._at.get(worker, ()) for worker in sub.workers), "a sub-request is missing at its worker"
        assert sub in self._by_generation.get(sub.generation, ()), "a sub-request has lost its request"
        assert (sub.place is not None) == (sub.stage in PLACED), f"{sub.stage.value}, but placed: {sub.place}"
        assert (sub.target is not None) == (sub.stage is Stage.MIGRATING), f"{sub.stage.value}, target {sub.target}"
        assert (sub.retry is not None) == (sub.stage is Stage.BACKING_OFF), f"{sub.stage.value}, timer {sub.retry}"
        assert (sub in self.waiting) == (sub.stage is Stage.WAITING), f"{sub.stage.value}, but in the wrong line"
        assert sub.stage is Stage.DECODING or sub not in self.leaving, "it leaves, but does not run"
