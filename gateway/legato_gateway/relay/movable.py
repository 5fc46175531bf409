"""Which running sequences of a hot worker may be handed on. Pure: time is passed in, on the clock of timers."""

import heapq
from collections.abc import Iterable

from legato_gateway.relay.hot_workers import TRIES
from legato_gateway.relay.lifecycle import Stage
from legato_gateway.relay.sub_request import SubRequest
from legato_gateway.routing.rebalancing import HotWorker

SILENT_STEPS = 3  # a sequence without a token for so many steps may be preempted: that one cannot move


def best(hot: HotWorker, there: Iterable[SubRequest], least_left: int, now: float) -> list[SubRequest]:
    """Of the sequences `there`, best first: the shortest take the fewest bytes for the time that is gained. Each may
    get `least_left` more tokens. None while one is on its way."""
    name = hot.worker.name
    there = [sub for sub in there if sub.place is not None and sub.place.decode == name]
    if any(sub.stage is Stage.MIGRATING for sub in there):
        return []
    since = now - SILENT_STEPS * max(hot.tpot, hot.worker.step_time)
    return heapq.nsmallest(TRIES, (sub for sub in there if _may_leave(sub, least_left, now, since)), key=_length)


def _may_leave(sub: SubRequest, least_left: int, now: float, since: float) -> bool:
    """A sequence has few tries that may fail, and needs them when its worker drains: here it has one."""
    if sub.stage is not Stage.DECODING or len(sub.choices) != 1 or sub.migrations_failed or sub.generation.paused:
        return False
    left = sub.generation.request.params.max_tokens - len(sub.output)
    if left < least_left or now < sub.settled_until:
        return False
    return sub.generation.choices[sub.choices[0]].last_at >= since


def _length(sub: SubRequest) -> int:
    return len(sub.generation.request.prompt) + len(sub.output)
