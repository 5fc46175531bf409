"""When a hot worker hands a sequence on. Pure: time is passed in, on the clock of timers."""

from collections.abc import Callable
from typing import Protocol

from legato_gateway.routing import rebalancing
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_gateway.routing.rebalancing import HotWorker, RebalancingPolicy

TRIES = 4  # sequences of a worker: where these find no target, longer ones hardly do


class Movable(Protocol):
    """A sequence that can be handed on. Before `settled_until`, on the clock of timers, it is not."""

    settled_until: float


class HotWorkers:
    """Those that may hand a sequence on now: one at a time each, after it has been hot for a while. `jitter` draws from
    [0, 1). Without a policy nobody does."""

    def __init__(self, policy: RebalancingPolicy | None, jitter: Callable[[], float]) -> None:
        self._policy = policy
        self._jitter = jitter
        self._next_look = 0.0
        self._due: dict[str, float] = {}  # by name, of those that are hot
        self._rest: dict[str, float] = {}  # until when, of those from which a move failed

    @property
    def least_left(self) -> int:
        """Tokens: a sequence of which fewer may come is over too soon."""
        return 0 if self._policy is None else self._policy.least_left

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

    def failed(self, worker: str, now: float) -> None:
        """A move of one of its sequences did."""
        if self._policy is not None:
            self._rest[worker] = now + self._policy.rest

    def moved(self, sequence: Movable, worker: str, now: float) -> None:
        """That sequence has left it, for whatever reason: its next may go once the Loads have told of it."""
        if self._policy is not None:
            sequence.settled_until = now + self._policy.settled
        self._due.pop(worker, None)
