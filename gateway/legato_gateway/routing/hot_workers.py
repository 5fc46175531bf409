"""Decides when a hot worker hands a sequence on. Pure: callers pass `now`, from `Timers.time`."""

from collections.abc import Callable
from typing import Protocol

from legato_gateway.routing import rebalancing
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_gateway.routing.rebalancing import HotWorker, RebalancingPolicy

TRIES = 4  # sequences tried per worker: where these find no target, longer ones rarely do


class Movable(Protocol):
    """A running sequence, which a hot worker does not hand on before `settled_until` in `Timers.time`."""

    settled_until: float


class HotWorkers:
    """Selects workers that may hand a sequence on, because they have been hot for a while.

    `jitter` draws from [0, 1). Without a policy, no worker is selected.
    """

    def __init__(self, policy: RebalancingPolicy | None, jitter: Callable[[], float]) -> None:
        self._policy = policy
        self._jitter = jitter
        self._next_poll = 0.0
        self._due: dict[str, float] = {}  # hot workers by name: the time from which they may hand on
        self._rest: dict[str, float] = {}  # by name: the time until which a failed move stops others

    @property
    def least_left(self) -> int:
        """Least number of tokens that a sequence may still generate for a move to pay off."""
        return 0 if self._policy is None else self._policy.least_left

    def due(self, snapshot: FleetSnapshot, now: float) -> list[HotWorker]:
        """Returns workers that have been hot for long enough; none if all are hot, as there is no target then."""
        policy = self._policy
        if policy is None or now < self._next_poll:
            return []
        self._next_poll = now + policy.interval
        hot = rebalancing.hot_workers(snapshot, policy.tpot)
        first = now + policy.patience
        due = {w.worker.name: self._due.get(w.worker.name) or first + policy.jitter * self._jitter() for w in hot}
        self._due = due
        self._rest = {name: until for name, until in self._rest.items() if until > now}
        if not {w.name for w in snapshot.workers if w.decodes and w.usable} - due.keys():
            return []
        return [each for each in hot if due[each.worker.name] <= now and each.worker.name not in self._rest]

    def failed(self, worker: str, now: float) -> None:
        """Pauses moves from `worker` after one failed."""
        if self._policy is not None:
            self._rest[worker] = now + self._policy.failure_pause

    def moved(self, sequence: Movable, worker: str, now: float) -> None:
        """Lets `sequence` settle, and restarts the patience of `worker`: its load reports then include the move."""
        if self._policy is not None:
            sequence.settled_until = now + self._policy.settle_time
        self._due.pop(worker, None)
