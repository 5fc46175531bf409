"""Which decode workers are hot, and which others one of their running sequences relieves them at. Pure.

Routing places what comes; this is for what grew since. Moving running sequences between instances for their load is
Llumnix's idea (Sun et al., OSDI 2024). A move has to leave both workers clearly better off than before it, so that none
is worth taking back.
"""

from dataclasses import dataclass
from typing import Literal

from legato_gateway.routing import scorers
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_protocol.load import DecodeCoefficients

HotReason = Literal["step_time", "kv_cache"]
"""Steps take longer than the objective; or running sequences will soon be preempted for want of blocks."""
MigrationReason = Literal["draining"] | HotReason
"""Why a running sequence leaves its worker."""

WITHIN = 0.9  # of the objective, and of what the source's steps then take: so much may those of the target
AHEAD = 2  # blocks for each running sequence to grow into: with fewer, preemption is near
ROOMIER = 0.1  # part of an arena that the target still has free beyond what the source then has


@dataclass(frozen=True, slots=True)
class RebalancingPolicy:
    """Steps are to take `tpot` at most. Slow on purpose, so that what a move does shows before the next. Times in
    seconds: between two `look`s at the fleet; of `patience` until a worker that became hot, or handed one on, hands on,
    with up to `jitter` more, so that gateways which see the same do not all act; of `rest` after a move that failed;
    and for which a sequence that moved is `settled`. One of fewer output tokens than `least_left` is over too soon."""

    tpot: float
    look: float = 0.25
    patience: float = 1.0
    jitter: float = 2.0
    rest: float = 30.0
    settled: float = 30.0
    least_left: int = 64


@dataclass(frozen=True, slots=True)
class HotWorker:
    """A decode worker that had better hand a sequence on, where its steps are to take `tpot` seconds at most."""

    worker: WorkerView
    reason: HotReason
    tpot: float

    def relieved_by(self, target: WorkerView, tokens: int) -> bool:
        """Whether `target`, with a sequence of `tokens`, stays clearly cooler than this worker without it."""
        source = self.worker
        cost = target.decode_cost or source.decode_cost  # one that has not decoded yet is taken to be as fast
        if cost is None or source.decode_cost is None:
            return False
        coming = target.pending_blocks * target.block_size  # tokens sent there, which its Load does not count yet
        after = _step(cost, target.in_flight + 1, target.context_tokens + coming + tokens)
        left = _step(source.decode_cost, source.running - 1, source.context_tokens - tokens)
        if after > WITHIN * self.tpot or (self.reason == "step_time" and after > WITHIN * left):
            return False
        needed = target.blocks_for(tokens) + 1
        if _room(target) - needed < 2 * AHEAD * (target.in_flight + 1):
            return False
        free = (_room(target) - needed) / target.num_blocks
        return self.reason != "kv_cache" or free >= ROOMIER + _free_without(source, tokens)


def hot_workers(snapshot: FleetSnapshot, tpot: float) -> tuple[HotWorker, ...]:
    """Those that serve and are to go on serving: what runs on one that drains leaves it anyway."""
    serving = (worker for worker in snapshot.workers if worker.decodes and worker.ready and not worker.draining)
    reasons = ((worker, _why_hot(worker, tpot)) for worker in serving)
    return tuple(HotWorker(worker, reason, tpot) for worker, reason in reasons if reason is not None)


def _why_hot(worker: WorkerView, tpot: float) -> HotReason | None:
    """By what its steps are predicted to take, unless they were seen to take less: sequences whose clients do not read,
    and prompts under way, are no rows of them."""
    predicted = worker.decode_cost is not None and scorers.step_seconds(worker, worker.running, 0, 0.0) > tpot
    if predicted and not 0 < worker.step_time <= WITHIN * tpot:
        return "step_time"
    return "kv_cache" if worker.running and _room(worker) < AHEAD * worker.running else None


def _step(cost: DecodeCoefficients, rows: int, context: int) -> float:
    """Seconds of a step."""
    return cost.per_step + cost.per_row * rows + cost.per_context * context


def _room(worker: WorkerView) -> int:
    """Blocks to grow into for what runs there: those that wait for blocks, preempted or new, get the others."""
    return worker.room - worker.asked_blocks


def _free_without(source: WorkerView, tokens: int) -> float:
    return (_room(source) + source.blocks_for(tokens)) / source.num_blocks
