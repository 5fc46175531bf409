"""When a hot worker hands a sequence on, and which. Pure: time is passed in, on the clock of timers."""

import heapq
from collections.abc import Callable, Iterable

from legato_gateway.relay.lifecycle import Stage
from legato_gateway.relay.sub_request import SubRequest
from legato_gateway.routing import rebalancing
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_gateway.routing.rebalancing import HotWorker, RebalancingPolicy

TRIES = 4  # sequences of a worker: where these find no target, longer ones hardly do
SILENT_STEPS = 3  # a sequence without a token for so many steps may be preempted: that one cannot move


class HotWorkers:
    """Those that may hand a sequence on now: one at a time each, after it has been hot for a while. `jitter` draws from
    [0, 1). Without a policy nobody does."""

    def __init__(self, policy: RebalancingPolicy | None, jitter: Callable[[], float]) -> None:
        self._policy = policy
        self._jitter = jitter
        self._next_look = 0.0
        self._due: dict[str, float] = {}  # by name, of those that are hot
        self._rest: dict[str, float] = {}  # until when, of those from which a move failed

    def due(self, snapshot: FleetSnapshot, now: float) -> list[HotWorker]:
        """Hot for long enough. Nobody where all are hot: there is no target, and much else to do."""
        policy = self._policy
        if policy is None or now < self._next_look:
            return []
        self._next_look = now + policy.look
        hot = rebalancing.hot_workers(snapshot, policy.tpot)
        first = now + policy.patience
        due = {w.worker.name: self._due.get(w.worker.name) or first + policy.jitter * self._jitter() for w in hot}
        self._due = due
        self._rest = {name: until for name, until in self._rest.items() if until > now}
        if not {w.name for w in snapshot.workers if w.decodes and w.usable} - due.keys():
            return []
        return [each for each in hot if due[each.worker.name] <= now and each.worker.name not in self._rest]

    def able(self, hot: HotWorker, there: Iterable[SubRequest], now: float) -> list[SubRequest]:
        """Which of the sequences `there` may be handed on, best first: the shortest take the fewest bytes for the time
        that is gained. None while one is on its way."""
        name = hot.worker.name
        there = [sub for sub in there if sub.place is not None and sub.place.decode == name]
        if any(sub.stage is Stage.MIGRATING for sub in there):
            return []
        since = now - SILENT_STEPS * max(hot.tpot, hot.worker.step_time)
        return heapq.nsmallest(TRIES, (sub for sub in there if self._may_leave(sub, now, since)), key=_length)

    def failed(self, worker: str, now: float) -> None:
        """A move of one of its sequences did."""
        if self._policy is not None:
            self._rest[worker] = now + self._policy.rest

    def moved(self, sub: SubRequest, worker: str, now: float) -> None:
        """That sequence has left it, for whatever reason: its next may go once the Loads have told of it."""
        if self._policy is not None:
            sub.settled_until = now + self._policy.settled
        self._due.pop(worker, None)

    def _may_leave(self, sub: SubRequest, now: float, since: float) -> bool:
        """A sequence has few tries that may fail, and needs them when its worker drains: here it has one."""
        if sub.stage is not Stage.DECODING or len(sub.choices) != 1 or sub.migrations_failed or sub.generation.paused:
            return False
        assert self._policy is not None
        left = sub.generation.request.params.max_tokens - len(sub.output)
        if left < self._policy.least_left or now < sub.settled_until:
            return False
        return sub.generation.choices[sub.choices[0]].last_at >= since


def _length(sub: SubRequest) -> int:
    return len(sub.generation.request.prompt) + len(sub.output)
