"""All legs under way: by id, by worker, and those that wait for a worker. Every leg is placed and dropped here."""

import asyncio
import itertools
from collections.abc import Callable, Iterable

from legato_gateway.relay.dispatch import Dispatcher
from legato_gateway.relay.history import History
from legato_gateway.relay.leg import Leg
from legato_gateway.routing.choose import NoRoute
from legato_gateway.workers.fleet import Fleet

TRIES_PER_CHANGE = 16  # legs without a place that are offered one in vain whenever the fleet changes


class Legs:
    """`hopeless` is told of a leg that nobody will ever take."""

    def __init__(
        self, dispatcher: Dispatcher, fleet: Fleet, history: History, hopeless: Callable[[Leg, NoRoute], None]
    ) -> None:
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._history = history
        self._hopeless = hopeless
        self._by_id: dict[str, Leg] = {}
        self._at: dict[str, dict[Leg, None]] = {}  # by worker, in order of dispatch
        self._waiting: dict[Leg, None] = {}
        self._parts: dict[str, dict[int, Leg]] = {}  # of legs that were split while they ran: by its id, by choice

    def get(self, id: str) -> Leg | None:
        """The leg of that id, if it is under way."""
        return self._by_id.get(id)

    def of_choice(self, id: str, choice: int) -> Leg | None:
        """The leg that has this choice of what a worker calls `id`."""
        return self._by_id.get(id) or self._parts.get(id, {}).get(choice)

    def meant_by(self, id: str) -> list[Leg]:
        """All that a worker may mean by `id`."""
        leg = self._by_id.get(id)
        return [leg] if leg is not None else list(self._parts.get(id, {}).values())

    def at(self, worker: str) -> list[Leg]:
        """Legs of which that worker holds something."""
        return list(self._at.get(worker, ()))

    @property
    def waiting(self) -> int:
        """Legs without a worker."""
        return len(self._waiting)

    def start(self, leg: Leg) -> None:
        """A leg begins."""
        self._by_id[leg.id] = leg
        self.place(leg)

    def place(self, leg: Leg) -> bool:
        """On a worker, if one can take it; otherwise it waits for the fleet to change."""
        leg.retry = None
        outcome = self._dispatcher.dispatch(leg)
        if isinstance(outcome, NoRoute):
            self._waiting[leg] = None
            if outcome.lasting and not leg.has_output:
                self._hopeless(leg, outcome)
            return False
        self._waiting.pop(leg, None)
        leg.placement, leg.started, leg.begun, leg.recompute = outcome, False, set(), False
        worker = self._fleet.worker(outcome.decode)
        if worker is not None and worker.hello is not None:
            leg.kv_revision = worker.hello.kv_revision
        self.note(leg)
        return True

    def place_waiting(self) -> None:
        """The fleet changed. What finds no place goes to the end, so that one that fits nowhere holds up nobody."""
        misses = []
        for leg in list(itertools.islice(self._waiting, 4 * TRIES_PER_CHANGE)):
            if leg in self._waiting and not self.place(leg) and leg in self._waiting:
                misses.append(leg)
                if len(misses) >= TRIES_PER_CHANGE:
                    break
        for leg in misses:
            if leg in self._waiting:
                self._waiting[leg] = self._waiting.pop(leg)

    def again(self, leg: Leg, delay: float) -> None:
        """Ends the current attempt everywhere and starts over with what the client has."""
        self._dispatcher.cancel(leg)
        self.forget(leg, leg.workers)
        leg.placement = leg.move = None
        leg.started = False
        for part in self._split(leg):
            if leg.generation.ended:
                return  # its siblings were dropped when a part before them turned out to be hopeless
            if delay:
                part.retry = asyncio.get_running_loop().call_later(delay, self.place, part)
            else:
                self.place(part)

    def split(self, leg: Leg) -> list[Leg]:
        """The running `leg` becomes one for each choice that goes on, at the same place."""
        placement, begun = leg.placement, leg.begun
        assert placement is not None
        parts = self._apart(leg)
        for part in parts:
            part.origin, part.placement, part.started, part.begun = leg.id, placement, True, set(begun)
            self.note(part)
        self._parts[leg.id] = {part.choices[0]: part for part in parts}
        self._dispatcher.split(leg.id, placement, {part.choices[0]: part.id for part in parts})
        return parts

    def drop(self, leg: Leg, cancel: bool) -> None:
        """The leg is over; with `cancel`, its workers have to be told."""
        if cancel:
            self._dispatcher.cancel(leg)
        if leg.retry is not None:
            leg.retry.cancel()
        self.forget(leg, leg.workers)
        self._by_id.pop(leg.id, None)
        self._waiting.pop(leg, None)
        leg.generation.legs.discard(leg)
        leg.placement = leg.move = None
        if leg.origin:
            siblings = self._parts[leg.origin]
            del siblings[leg.choices[0]]
            if not siblings:
                del self._parts[leg.origin]
            leg.origin = ""

    def note(self, leg: Leg) -> None:
        """Its workers are as it says."""
        for worker in leg.workers:
            self._at.setdefault(worker, {})[leg] = None

    def forget(self, leg: Leg, workers: Iterable[str]) -> None:
        """These hold nothing of it any more."""
        for worker in workers:
            if (legs := self._at.get(worker)) is not None:
                legs.pop(leg, None)
                if not legs:
                    del self._at[worker]

    def check_integrity(self) -> None:
        """Raises AssertionError unless the books agree."""
        for worker, legs in self._at.items():
            assert all(worker in leg.workers for leg in legs), "a leg is filed at a worker that has nothing of it"
        for leg in self._by_id.values():
            assert all(leg in self._at.get(worker, ()) for worker in leg.workers), "a leg is missing at its worker"
            assert leg in leg.generation.legs, "a leg has lost its request"
            placed = leg.placement is not None
            assert placed + (leg in self._waiting) + (leg.retry is not None) == 1, "a leg is nowhere, or twice"
        assert all(leg.id in self._by_id for leg in self._waiting), "an ended leg waits"
        for id, parts in self._parts.items():
            assert parts, "a leg of which nothing is left is remembered"
            assert id not in self._by_id, "a leg that was split goes on"
            assert all(self._by_id.get(leg.id) is leg and leg.origin == id for leg in parts.values()), "a part is over"

    def _split(self, leg: Leg) -> list[Leg]:
        """One leg per unfinished choice, once choices differ."""
        if len(leg.choices) == 1 or not any(leg.generation.choices[choice].tokens for choice in leg.choices):
            return [leg]
        return self._apart(leg)

    def _apart(self, leg: Leg) -> list[Leg]:
        parts = [self._part_of(leg, choice) for choice in leg.open]
        self.drop(leg, cancel=False)
        for part in parts:
            self._by_id[part.id] = part
            leg.generation.legs.add(part)
        return parts

    def _part_of(self, leg: Leg, choice: int) -> Leg:
        part = Leg(f"{leg.id}/{choice}", leg.generation, (choice,), leg.attempt)
        part.recompute, part.kv_revision, part.avoid = leg.recompute, leg.kv_revision, set(leg.avoid)
        part.failures, part.last_failure = leg.failures, leg.last_failure
        self._history.also(part.id, leg.generation.route)
        return part
