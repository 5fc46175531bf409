"""The fleet's capacity, counted down as requests are admitted. Pure: part of `admission`."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf

from legato_gateway.admission.limits import AdmissionLimits
from legato_gateway.admission.prompt_queues import PromptQueues
from legato_gateway.routing import filters, scorers
from legato_gateway.routing.filters import Matches, Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_protocol.step_target import STEP_TARGET
from legato_protocol.wire.demand import WaitCause


class Capacity:
    """Room for sequences on decoding workers, and for prompt tokens in the queues of those that prefill.

    `filters` and the prompt queues decide what fits. Admitted work counts as sent: it is pending on the worker with the
    most room, and queued where the prompt is computed.
    """

    def __init__(self, snapshot: FleetSnapshot, limits: AdmissionLimits, queued_tokens: int = 0) -> None:
        """`queued_tokens` are prompt tokens queued in the gateway, long prompts by their cost."""
        present = [worker for worker in snapshot.workers if worker.ready and not worker.draining]
        usable = [worker for worker in present if not worker.broken] or present
        # Prompts queue on new workers of a canary only by their share, so the old ones decide about admission.
        usable = [worker for worker in usable if not worker.new_revision] or usable
        self._decoders = {worker.name: worker for worker in snapshot.workers if worker.decodes}
        self._step_limit = STEP_TARGET * limits.refuse_beyond.tpot if limits.refuse_beyond else inf
        self._usual_step = scorers.usual_step(snapshot) if limits.refuse_beyond else 0.0
        self._prompts = PromptQueues(usable, snapshot, limits, queued_tokens)
        self._most_room: int | None = None  # tokens on one worker, before anything was taken; None: not counted yet

    def fits(self, need: Need, uncached: int, matches: Matches) -> bool:
        """True if `take` would succeed."""
        return self._place(need, uncached, matches) is not None

    def take(self, need: Need, uncached: int, matches: Matches, backlogs: int = 1) -> bool:
        """Takes room for `need` and returns True, or changes nothing.

        Queues may get `backlogs` times the usual length.
        """
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
        """True if the queues of prompts are too long for `uncached` more tokens."""
        return self._prompts.full(uncached)

    def spare_tokens(self, need: Need) -> int:
        """Returns the tokens that the largest able worker, when empty, has in addition to the sequence."""
        able = [w for w in self._decoders.values() if w.ready and not w.draining and not filters.never(w, need)]
        return max(((w.num_blocks - filters.wanted(w, need, 0)) * w.block_size for w in able), default=0)

    def lacks_time(self, need: Need, matches: Matches) -> bool:
        """True if workers have room for it, but it would make the steps of each too long."""
        fitting = _fitting(self._decoders.values(), need, matches)
        return bool(fitting) and not any(self._steps_in_time(worker, need) for worker in fitting)

    def _place(self, need: Need, uncached: int, matches: Matches, backlogs: int = 1) -> tuple[WorkerView, str] | None:
        """Returns the worker that would decode it, and the one whose prompt queue would grow."""
        shortest = self._prompts.shortest_for(uncached, backlogs)
        if (shortest is None and not self._prompts.helped) or uncached > self._room():
            return None
        decoders = tuple(self._decoders.values())
        fitting = _fitting(decoders, need, matches)
        if not fitting and any(worker.broken for worker in decoders):
            fitting = _fitting(filters.forgiven(FleetSnapshot(decoders), need).workers, need, matches)
        fitting = [worker for worker in fitting if self._keeps_up(worker, need)]
        if shortest is None:
            fitting = [worker for worker in fitting if self._prompts.can_help(worker.name, uncached)]
        if not fitting:
            return None
        name = max(fitting, key=lambda worker: worker.room).name
        return self._decoders[name], shortest or name

    def _keeps_up(self, worker: WorkerView, need: Need) -> bool:
        """True if the worker would start it immediately, in steps that meet the objective; always if it is idle."""
        if self._step_limit == inf or not worker.in_flight:
            return True
        mean = worker.growth_blocks / max(
            1, worker.in_flight - worker.pending_sequences
        )  # older workers report no other
        growth = worker.growth_blocks + max(mean, worker.next_growth_blocks) * (worker.pending_sequences + 1)
        room = worker.room - worker.asked_blocks - growth
        return filters.wanted(worker, need, 0) <= room and self._steps_in_time(worker, need)

    def _steps_in_time(self, worker: WorkerView, need: Need) -> bool:
        rows = worker.in_flight + 1
        if self._step_limit == inf or rows == 1:
            return True
        return scorers.step_seconds(worker, rows, need.tokens, self._usual_step) <= self._step_limit

    def _room(self) -> int:
        """Returns a bound on uncached tokens that fit anywhere: a quick test for long queues."""
        if self._most_room is None:
            self._most_room = max(filters.most_room(FleetSnapshot(tuple(self._decoders.values()))).values(), default=0)
        return self._most_room

    def obstacle(self, need: Need, matches: Matches) -> WaitCause:
        """Returns the cause for which a sequence waits. Decode room comes first: prompts also queue because of missing
        room, and then more prefill workers would not help."""
        there = [w for w in self._decoders.values() if w.ready and not w.draining and not filters.never(w, need)]
        if not there:
            return "no_worker"
        open_ = [worker for worker in there if filters.has_credit(worker)]
        if not open_:
            return "credits"
        room = [
            worker
            for worker in open_
            if filters.full(worker, need, filters.matched(worker, need, matches)) is None
            and self._keeps_up(worker, need)
        ]
        return "prefill" if room else "decode_room"

    def never_fits(self, need: Need) -> str | None:
        """Returns why no known worker could hold this sequence even when empty, or None. Without workers, None."""
        return self._against_all(filters.too_small, need)

    def never_takes(self, need: Need) -> str | None:
        """Returns why no known worker can ever take it, for any lasting reason, or None."""
        return self._against_all(filters.never, need)

    def _against_all(self, judge: Callable[[WorkerView, Need], str | None], need: Need) -> str | None:
        reasons = {name: judge(worker, need) for name, worker in self._decoders.items()}
        if not reasons or not all(reasons.values()):
            return None
        return "; ".join(f"{name} {reason}" for name, reason in reasons.items())

    @property
    def most_choices(self) -> int | None:
        """The most choices of one request that one worker can run concurrently; None: unknown."""
        slots = [worker.slots for worker in self._decoders.values()]
        return max(slots) if slots and all(slots) else None

    def seconds(self, tokens: int) -> float:
        """Returns about how many seconds the fleet needs for `tokens` more; 0 if no rate was measured yet."""
        return self._prompts.seconds(tokens)

    def work_seconds(self, tokens: int) -> float:
        """Returns about how many seconds `tokens` take the whole fleet; 0 if no rate was measured yet."""
        return self._prompts.seconds(tokens) - self._prompts.seconds(0)

    def prompt_wait(self, tokens: float, own: int) -> float:
        """Returns about how many seconds a prompt with `own` tokens waits for those before it: `tokens` here, and a
        worker's queue."""
        return self._prompts.wait(tokens, own)

    def own_seconds(self, need: Need, uncached: int) -> float:
        """Returns about how many seconds a worker takes for the prompt itself; 0 if no rate was measured yet."""
        return self._prompts.own_seconds(need.tokens, uncached)


def _fitting(workers: Iterable[WorkerView], need: Need, matches: Matches) -> list[WorkerView]:
    return [w for w in workers if filters.why_not(w, need, filters.matched(w, need, matches)) is None]
