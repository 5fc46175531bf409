"""What the fleet can take on at once, counted down as requests are given to it. Pure: part of `admission`."""

from collections.abc import Iterable
from dataclasses import replace

from legato_gateway.admission.limits import AdmissionLimits
from legato_gateway.admission.prompt_queues import PromptQueues
from legato_gateway.routing import filters
from legato_gateway.routing.filters import Matches, Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_protocol.demand import WaitCause


class Capacity:
    """Room for sequences on decoding workers, and for prompt tokens in the queues of those that prefill.

    What fits is for `filters` to say, and for the queues of prompts. What is taken counts as sent: it is pending at the
    worker with most room, and queued where the prompt is computed.
    """

    def __init__(self, snapshot: FleetSnapshot, limits: AdmissionLimits, held_tokens: int = 0) -> None:
        """`held_tokens` of prompts wait in the gateway."""
        present = [worker for worker in snapshot.workers if worker.ready and not worker.draining]
        usable = [worker for worker in present if not worker.broken] or present
        self._decoders = {worker.name: worker for worker in snapshot.workers if worker.decodes}
        self._prompts = PromptQueues(usable, snapshot, limits, held_tokens)
        self._most_room: int | None = None  # tokens, at one worker, before anything was taken; None: to be counted

    def fits(self, need: Need, uncached: int, matches: Matches) -> bool:
        """Whether `take` would take it."""
        return self._place(need, uncached, matches) is not None

    def take(self, need: Need, uncached: int, matches: Matches, backlogs: int = 1) -> bool:
        """Takes what `need` wants and says True, or leaves everything as it was. Queues may become `backlogs` times as
        long as otherwise."""
        place = self._place(need, uncached, matches, backlogs)
        if place is None:
            return False
        worker, prefiller = place
        blocks = filters.wanted(worker, need, filters.matched(worker, need, matches))
        self._decoders[worker.name] = replace(
            worker,
            pending_blocks=worker.pending_blocks + blocks,
            pending_sequences=worker.pending_sequences + 1,
        )
        self._prompts.add(prefiller, uncached)
        return True

    def prompts_queue(self, uncached: int) -> bool:
        """Whether the queues of prompts are too long for `uncached` tokens more."""
        return self._prompts.full(uncached)

    def spare_tokens(self, need: Need) -> int:
        """What the largest worker that can take the sequence holds beyond it when nothing else is there."""
        able = [w for w in self._decoders.values() if w.ready and not w.draining and not filters.never(w, need)]
        return max(((w.num_blocks - filters.wanted(w, need, 0)) * w.block_size for w in able), default=0)

    def _place(self, need: Need, uncached: int, matches: Matches, backlogs: int = 1) -> tuple[WorkerView, str] | None:
        """The worker that would decode it, and the one whose queue would get longer."""
        shortest = self._prompts.shortest_for(uncached, backlogs)
        if (shortest is None and not self._prompts.helped) or uncached > self._room():
            return None
        decoders = tuple(self._decoders.values())
        fitting = _fitting(decoders, need, matches)
        if not fitting and any(worker.broken for worker in decoders):
            fitting = _fitting(filters.forgiven(FleetSnapshot(decoders), need).workers, need, matches)
        if shortest is None:
            fitting = [worker for worker in fitting if self._prompts.can_help(worker.name, uncached)]
        if not fitting:
            return None
        name = max(fitting, key=lambda worker: worker.room).name
        return self._decoders[name], shortest or name

    def _room(self) -> int:
        """More uncached tokens than that fit nowhere: a quick answer for many that wait."""
        if self._most_room is None:
            self._most_room = max(filters.most_room(FleetSnapshot(tuple(self._decoders.values()))).values(), default=0)
        return self._most_room

    def obstacle(self, need: Need, matches: Matches) -> WaitCause:
        """What a sequence waits for that was not taken. Room to decode comes first: prompts queue for want of it, too,
        and then more workers that prefill would not help."""
        there = [w for w in self._decoders.values() if w.ready and not w.draining and not filters.never(w, need)]
        if not there:
            return "no_worker"
        open_ = [worker for worker in there if filters.has_credit(worker)]
        if not open_:
            return "credits"
        room = [w for w in open_ if filters.full(w, need, filters.matched(w, need, matches)) is None]
        return "prefill" if room else "decode_room"

    def never_fits(self, need: Need) -> str | None:
        """Why no known worker could hold this sequence even when empty, or None. With no workers, nobody knows."""
        reasons = {name: filters.too_small(worker, need) for name, worker in self._decoders.items()}
        if not reasons or not all(reasons.values()):
            return None
        return "; ".join(f"{name} {reason}" for name, reason in reasons.items())

    def never_takes(self, need: Need) -> str | None:
        """The same for any reason that waiting does not change."""
        reasons = {name: filters.never(worker, need) for name, worker in self._decoders.items()}
        if not reasons or not all(reasons.values()):
            return None
        return "; ".join(f"{name} {reason}" for name, reason in reasons.items())

    @property
    def most_choices(self) -> int | None:
        """How many choices of one request can run at once, at the worker with most room for them; None: not known."""
        slots = [worker.slots for worker in self._decoders.values()]
        return max(slots) if slots and all(slots) else None

    def seconds(self, tokens: int) -> float:
        """About how long the fleet needs until `tokens` more are computed; 0 where no rate was measured yet."""
        return self._prompts.seconds(tokens)


def _fitting(workers: Iterable[WorkerView], need: Need, matches: Matches) -> list[WorkerView]:
    return [w for w in workers if filters.why_not(w, need, filters.matched(w, need, matches)) is None]
