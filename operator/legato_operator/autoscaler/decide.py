"""Decides each pool's number of workers from the signals and recent decisions. Pure.

A pool grows immediately to the largest term, except that terms of a sample must last, since chance moves them. It
shrinks only to the highest desired size within the window. Terms of a surge count for less time than the others. A
missing signal never lets a pool shrink. The last worker of a pool is removed once nothing has arrived or run for a
while, and comes back with the first request.

`window` remembers the desired sizes. `planning.pools.limits` limits the result by ratio and GPU budget, and
`planning.pools.pool_plan` chooses the workers that leave.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from legato_operator.api import roles
from legato_operator.api.resources import Bounds, Spec
from legato_operator.autoscaler import decode, objectives, outlook, prefill
from legato_operator.autoscaler.decision import (
    CONFIRMING,
    COOLING_DOWN,
    IDLE,
    METRICS_MISSING,
    PASSING,
    PREFILL_AND_DECODE,
    SAMPLED,
    STABILIZING,
    STEP_TIME,
    WITHIN_BOUNDS,
    Decision,
    PoolDecision,
    Term,
)
from legato_operator.autoscaler.signals import Signals, WorkerSignals
from legato_operator.autoscaler.window import KeptSize, Window
from legato_protocol.wire.demand import STALE_AFTER

DECIDE_EVERY = 2.0  # seconds between two decisions about a service
_ROUNDING = 1e-6  # workers; tolerates errors of floating point


def decide(
    signals: Signals, windows: Mapping[str, Window], spec: Spec, current: Mapping[str, int], now: float
) -> Decision:
    """Returns the decision for each pool. `current` is each pool's desired size until now; `now` is in seconds.

    `windows` come from the previous decision. After a restart they are empty, and start with the current sizes.
    """
    fresh = dataclasses.replace(signals, workers=tuple(_fresh(worker) for worker in signals.workers))
    made: dict[str, PoolDecision] = {}
    kept: dict[str, Window] = {}
    confirmed: tuple[Term, ...] = ()  # of the pool before
    for name in reversed(roles.with_pool(spec)):  # prefill first: its workers need a decode worker
        pool = _Pool(name, spec, fresh, current[name], now)
        terms = _terms(pool, confirmed)
        kept[name] = _window(pool, windows.get(name, Window()), terms)
        is_required = any(each.desired for each in made.values())
        confirmed = _confirmed(pool, terms, kept[name])
        made[name] = _decide(pool, terms, _asked(confirmed, pool.current), kept[name], is_required)
    return Decision({name: made[name] for name in roles.with_pool(spec)}, kept)


@dataclass(frozen=True)
class _Pool:
    """The inputs of the decision about one pool."""

    name: str
    spec: Spec
    signals: Signals
    current: int
    now: float

    @property
    def bounds(self) -> Bounds:
        return roles.bounds(self.spec, self.name)

    @property
    def workers(self) -> tuple[WorkerSignals, ...]:
        return self.signals.of_pool("prefill" if self.name == roles.PREFILL else "decode")


def _fresh(worker: WorkerSignals) -> WorkerSignals:
    """Returns a worker without its load if that is stale; its costs change slowly and stay."""
    if worker.sample_age is not None and worker.sample_age <= STALE_AFTER:
        return worker
    return dataclasses.replace(
        worker,
        queue_tokens=None,
        parked_tokens=None,
        blocks=None,
        running=None,
        waiting=None,
        prompt_tokens=None,
        context_tokens=None,
    )


def _is_idle(pool: _Pool) -> bool:
    """True if nothing that needs the pool arrives, waits or runs; prompts need decode workers, too.

    A starting worker keeps its pool busy: otherwise one that loads for longer than `idleAfter` would never serve.
    """
    signals, traffic = pool.signals, pool.signals.traffic
    if traffic is None or traffic.queued or any(each.requests for each in (*traffic.recent, *traffic.waiting)):
        return False
    workers = [worker for worker in signals.workers if pool.name != roles.PREFILL or worker.pool == "prefill"]
    if any(worker.ready and worker.queue_tokens is None for worker in workers):
        return False
    starts = [worker for worker in workers if not (worker.ready or worker.draining)]
    if any(worker.age < pool.spec.rollout.progress_deadline for worker in starts):
        return False
    return not any(worker.running or worker.waiting or worker.queue_tokens for worker in workers)


def _terms(pool: _Pool, prompts: tuple[Term, ...]) -> tuple[Term, ...]:
    """Returns a pool's terms. `prompts` are the terms of the prefill pool, for the decode pool."""
    signals, spec, current = pool.signals, pool.spec, pool.current
    if pool.name == roles.PREFILL:
        return prefill.terms(_without_preempted(signals), signals.of_pool("prefill"), spec.slo.ttft, current)
    workers = signals.of_pool("decode")
    decoding = decode.terms(signals, workers, spec, prompts)
    if spec.disaggregated:
        return decoding
    own_prompts = prefill.terms(signals, workers, spec.slo.ttft, current)
    return (*decoding, *own_prompts, *_both(own_prompts, decoding))


def _without_preempted(signals: Signals) -> Signals:
    """Returns the signals for the prefill pool, without preempted sequences, which only decode workers recompute."""
    workers = [
        dataclasses.replace(worker, queue_tokens=worker.prompt_tokens) if worker.pool == "decode" else worker
        for worker in signals.workers
    ]
    return dataclasses.replace(signals, workers=tuple(workers))


def _both(prompts: Sequence[Term], decoding: Sequence[Term]) -> tuple[Term, ...]:
    """Returns the term of unified workers, which prefill and decode, so that both times add up."""
    steps = max((term.known for term in decoding if term.reason == STEP_TIME), default=0.0)
    numbers = {"prefill": max((term.known for term in prompts), default=0.0), "decode": steps}
    return (
        (Term.from_equation(PREFILL_AND_DECODE, "prefill + decode", numbers),) if steps and numbers["prefill"] else ()
    )


def _missing(terms: Sequence[Term]) -> tuple[str, ...]:
    return tuple(term.missing for term in terms if term.missing)


def _needed(terms: Sequence[Term]) -> int:
    return math.ceil(max((term.known for term in terms), default=0.0) - _ROUNDING)


def _asked(terms: Sequence[Term], current: int) -> int:
    """Returns the needed number of workers, or at least the current one while a signal is missing."""
    return max(_needed(terms), current) if _missing(terms) else _needed(terms)


def _confirmed(pool: _Pool, terms: tuple[Term, ...], window: Window) -> tuple[Term, ...]:
    """Returns the terms with sampled needs limited to what has lasted. A pool without workers does not wait."""
    if not pool.current:
        return terms
    return tuple(
        dataclasses.replace(term, workers=min(term.known, window.confirmed)) if term.reason in SAMPLED else term
        for term in terms
    )


def _window(pool: _Pool, before: Window, terms: Sequence[Term]) -> Window:
    """Returns the window with the size for all terms, and the size for lasting terms, which is kept for longer.

    A surge asks for its workers until they serve. They then stay for a start time, over which `Backlog` spreads its
    work: workers that were stopped too early are back after as long.
    """
    lasting = [term for term in terms if term.reason not in PASSING or term.missing]
    stabilization = pool.spec.scaling.scale_down_stabilization
    passing_seconds = min(stabilization, prefill.start_seconds(pool.workers))
    desired = [
        KeptSize(pool.now + seconds, _within(pool.bounds, _asked(needed, pool.current)))
        for needed, seconds in ((terms, passing_seconds), (lasting, stabilization))
    ]
    sampled = [term for term in terms if term.reason in SAMPLED]
    confirmable = None if _missing(sampled) else _needed(sampled)
    return before.add(pool.now, desired, confirmable, pool.current, _is_idle(pool))


def _decide(pool: _Pool, terms: tuple[Term, ...], asked: int, window: Window, is_required: bool) -> PoolDecision:
    """Returns the decision for one pool, whose confirmed terms ask for `asked` workers.

    `is_required`: workers of another pool need a worker of this one.
    """
    bounds, current, scaling, now = pool.bounds, pool.current, pool.spec.scaling, pool.now
    needed = _needed(terms)
    allowed = _within(bounds, asked)
    lowest = _within(bounds, max(window.lowest(now, scaling.idle_after), int(is_required)))
    desired = allowed if allowed >= current else min(lowest, current)
    cap = ""
    if desired == bounds.max < max(asked, needed):
        cap = f"scaling.{pool.name}.max"
    elif desired == allowed > max(asked, needed):  # otherwise another reason keeps the pool larger
        cap = f"scaling.{pool.name}.min"
    decision = PoolDecision(
        pool="prefill" if pool.name == roles.PREFILL else "decode",
        current=current,
        desired=desired,
        needed=needed,
        highest=window.highest,
        reason="",
        terms=terms,
        missing=_missing(terms),
        capped_by=cap,
        unmet=objectives.unmet(pool.signals, pool.name, pool.spec),
    )
    reason = _reason(decision)
    left = window.shrinks_at(current) - now
    if reason == COOLING_DOWN:
        left = window.busy + scaling.idle_after - now
    return dataclasses.replace(decision, reason=reason, change=outlook.change(decision, reason, left))


def _within(bounds: Bounds, replicas: int) -> int:
    return min(max(replicas, bounds.min), bounds.max)


def _reason(decision: PoolDecision) -> str:
    """Returns the reason why the desired size is not smaller, or not larger yet."""
    if decision.desired == decision.current < decision.needed and not decision.capped_by:
        return CONFIRMING
    if decision.desired <= decision.needed:
        largest = max(decision.terms, key=lambda term: term.known, default=None)
        return largest.reason if largest is not None and largest.known > 0 else IDLE
    if decision.missing and decision.desired >= decision.current:
        return METRICS_MISSING
    if decision.capped_by:
        return WITHIN_BOUNDS
    return STABILIZING if decision.highest > 1 else COOLING_DOWN
