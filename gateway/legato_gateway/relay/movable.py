"""Selects running sequences that a hot worker may hand on. Pure: time is passed in, on the clock of timers."""

import heapq
from collections.abc import Iterable

from legato_gateway.relay.lifecycle import Stage
from legato_gateway.relay.sub_request import SubRequest
from legato_gateway.routing.rebalancing import TRIES, HotWorker

SILENT_STEPS = 3  # a sequence without a token for this number of steps may be preempted, and cannot move


def best(hot: HotWorker, there: Iterable[SubRequest], least_left: int, now: float) -> list[SubRequest]:
    """Returns the sequences to try, shortest first: they move the fewest bytes for the time gained.

    Each may get `least_left` more tokens. None while a migration from this worker is under way.
    """
    name = hot.worker.name
    there = [sub for sub in there if sub.place is not None and sub.place.decode == name]
    if any(sub.stage is Stage.MIGRATING for sub in there):
        return []
    since = now - SILENT_STEPS * max(hot.tpot, hot.worker.step_time)
    return heapq.nsmallest(TRIES, (sub for sub in there if _may_leave(sub, least_left, now, since)), key=_length)


def _may_leave(sub: SubRequest, least_left: int, now: float, since: float) -> bool:
    """True if it can move. A migration that failed once is not repeated: the few tries are kept for a drain."""
    if sub.stage is not Stage.DECODING or len(sub.choices) != 1 or sub.migrations_failed or sub.generation.paused:
        return False
    left = sub.generation.request.params.max_tokens - len(sub.output)
    if left < least_left or now < sub.settled_until:
        return False
    return sub.generation.choices[sub.choices[0]].last_at >= since


def _length(sub: SubRequest) -> int:
    return len(sub.generation.request.prompt) + len(sub.output)
