"""Detects hot decode workers, and workers that relieve them of a running sequence. Pure.

Routing places new requests; this handles growth since then. Moving running sequences between instances to balance load
is Llumnix's idea (Sun et al., OSDI 2024). A move must leave both workers clearly better off, so that no move is worth
undoing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from legato_gateway.routing import scorers
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_protocol.wire.load import DecodeCoefficients

HotReason = Literal["step_time", "kv_cache"]
"""Steps take longer than the objective, or so few blocks are free that running sequences will soon be preempted."""
MigrationReason = Literal["draining"] | HotReason
"""The reason why a running sequence leaves its worker."""

WITHIN = 0.9  # limit of the target's step time, as a share of the objective and of the source's step after the move
AHEAD = 2  # free blocks per running sequence: with fewer, preemption is near
ROOMIER = 0.1  # share of its arena that the target must have free beyond the source's free share after the move
TRIES = 4  # sequences tried per worker: where these find no target, longer ones rarely do


@dataclass(frozen=True, slots=True)
class RebalancingPolicy:
    """Limits of moves between workers. Slow on purpose, so that the effect of a move shows before the next one."""

    tpot: float  # objective of a step, in seconds, like all times here
    interval: float = 0.25  # between two polls of the fleet
    patience: float = 1.0  # for which a worker must be hot, since it became hot or since its last move
    jitter: float = 2.0  # maximum that is added to the patience, so that gateways with the same view do not all act
    failure_pause: float = 30.0  # without moves from a worker after one failed
    settle_time: float = 30.0  # without another move of a moved sequence
    least_left: int = 64  # tokens: sequences that may get fewer are not moved


@dataclass(frozen=True, slots=True)
class HotWorker:
    """A decode worker that should hand a sequence on to another one. `tpot` is the objective of a step in seconds."""

    worker: WorkerView
    reason: HotReason
    tpot: float

    def relieved_by(self, target: WorkerView, tokens: int) -> bool:
        """True if `target`, with a sequence of `tokens`, stays clearly cooler than this worker without it."""
        source = self.worker
        cost = target.decode_cost or source.decode_cost  # one that has not decoded yet is assumed to be as fast
        if cost is None or source.decode_cost is None:
            return False
        coming = target.pending_blocks * target.block_size  # tokens sent there that its Load does not include yet
        after = _step(cost, target.in_flight + 1, target.context_tokens + coming + tokens)
        left = _step(source.decode_cost, source.running - 1, source.context_tokens - tokens)
        if after > WITHIN * self.tpot or (self.reason == "step_time" and after > WITHIN * left):
            return False
        needed = target.blocks_for(tokens) + 1 + len(target.windows)
        if _room(target) - needed < 2 * AHEAD * (target.in_flight + 1):
            return False
        free = (_room(target) - needed) / target.num_blocks
        return self.reason != "kv_cache" or free >= ROOMIER + _free_without(source, tokens)


def hot_workers(snapshot: FleetSnapshot, tpot: float) -> tuple[HotWorker, ...]:
    """Returns the hot workers that keep serving: sequences leave a draining one anyway."""
    serving = (worker for worker in snapshot.workers if worker.decodes and worker.ready and not worker.draining)
    reasons = ((worker, _why_hot(worker, tpot)) for worker in serving)
    return tuple(HotWorker(worker, reason, tpot) for worker, reason in reasons if reason is not None)


def _why_hot(worker: WorkerView, tpot: float) -> HotReason | None:
    """Returns the reason why a worker is hot, or None.

    A long predicted step counts only if the measured one is long, too: paused sequences and prompts add no rows.
    """
    predicted = worker.decode_cost is not None and scorers.step_seconds(worker, worker.running, 0, 0.0) > tpot
    if predicted and not 0 < worker.step_time <= WITHIN * tpot:
        return "step_time"
    return "kv_cache" if worker.running and _room(worker) < AHEAD * worker.running else None


def _step(cost: DecodeCoefficients, rows: int, context: int) -> float:
    """Returns the seconds of a step."""
    return cost.per_step + cost.per_row * rows + cost.per_context * context


def _room(worker: WorkerView) -> int:
    """Returns the blocks into which running sequences can grow, without those that waiting ones will get."""
    return worker.room - worker.asked_blocks


def _free_without(source: WorkerView, tokens: int) -> float:
    return (_room(source) + source.blocks_for(tokens)) / source.num_blocks


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
        hot = hot_workers(snapshot, policy.tpot)
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
