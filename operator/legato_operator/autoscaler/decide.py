"""The decision: from what is known and what was wished lately to how many workers each pool should have. Pure.

Up at once, to what the terms ask for; down only to the highest wish of the window. So a pool shrinks only to a size
that none of the window's moments would have grown. What is missing never lets a pool shrink.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from legato_operator.api import roles
from legato_operator.api.resources import Spec
from legato_operator.autoscaler import decode, outlook, prefill
from legato_operator.autoscaler.decision import (
    IDLE,
    METRICS_MISSING,
    PREFILL_AND_DECODE,
    STABILIZING,
    STEP_TIME,
    WITHIN_BOUNDS,
    Decision,
    PoolDecision,
    Term,
)
from legato_operator.autoscaler.signals import Signals, WorkerSignals
from legato_operator.autoscaler.window import Window

STALE_AFTER = 10.0  # seconds: what a worker told longer ago is not known any more
_ROUNDING = 1e-6  # workers: so much less than a whole one is due to floating point


def decide(
    signals: Signals, windows: Mapping[str, Window], spec: Spec, current: Mapping[str, int], now: float
) -> Decision:
    """What each pool should have. `current` is the desired size of each pool now, `now` in seconds.

    `windows` are those of the decision before; empty after a restart: then they begin with the current sizes.
    """
    fresh = dataclasses.replace(signals, workers=tuple(_fresh(worker) for worker in signals.workers))
    made: dict[str, PoolDecision] = {}
    kept: dict[str, Window] = {}
    for pool in roles.of(spec):
        pool_terms = _terms(fresh, pool, spec)
        kept[pool], made[pool] = _decide(pool, pool_terms, windows.get(pool, Window()), spec, current[pool], now)
    return Decision(made, kept)


def _fresh(worker: WorkerSignals) -> WorkerSignals:
    """Without what it told too long ago. What it costs to compute does not change so soon."""
    if worker.sample_age is not None and worker.sample_age <= STALE_AFTER:
        return worker
    return dataclasses.replace(
        worker, queue_tokens=None, parked_tokens=None, blocks=None, running=None, waiting=None, context_tokens=None
    )


def _terms(signals: Signals, pool: str, spec: Spec) -> tuple[Term, ...]:
    if pool == roles.PREFILL:
        return prefill.terms(signals, signals.of_pool("prefill"), spec.slo.ttft)
    workers = signals.of_pool("decode")
    decoding = decode.terms(signals, workers, spec)
    if spec.disaggregated:
        return decoding
    prompts = prefill.terms(signals, workers, spec.slo.ttft)
    return (*decoding, *prompts, *_both(prompts, decoding))


def _both(prompts: Sequence[Term], decoding: Sequence[Term]) -> tuple[Term, ...]:
    """Unified workers do one beside the other, so the time that both take adds up."""
    steps = max((term.known for term in decoding if term.reason == STEP_TIME), default=0.0)
    numbers = {"prefill": max((term.known for term in prompts), default=0.0), "decode": steps}
    return (Term.of(PREFILL_AND_DECODE, "prefill + decode", numbers),) if steps and numbers["prefill"] else ()


def _decide(
    pool: str, terms: tuple[Term, ...], before: Window, spec: Spec, current: int, now: float
) -> tuple[Window, PoolDecision]:
    bounds, missing = roles.bounds(spec, pool), tuple(term.missing for term in terms if term.missing)
    needed = math.ceil(max((term.known for term in terms), default=0.0) - _ROUNDING)
    asked = max(needed, current) if missing else needed
    allowed = min(max(asked, bounds.min), bounds.max)
    window = before.add(now, allowed, current, spec.scaling.scale_down_stabilization)
    lowest = min(max(window.highest, bounds.min), bounds.max)
    decision = PoolDecision(
        pool="prefill" if pool == roles.PREFILL else "decode",
        current=current,
        wish=allowed if allowed >= current else min(lowest, current),
        needed=needed,
        highest=window.highest,
        reason="",
        terms=terms,
        missing=missing,
        capped_by="" if asked == allowed else f"scaling.{pool}.{'max' if asked > allowed else 'min'}",
    )
    reason = _reason(decision)
    left = window.since + spec.scaling.scale_down_stabilization - now
    return window, dataclasses.replace(decision, reason=reason, change=outlook.change(decision, reason, left))


def _reason(decision: PoolDecision) -> str:
    """Why the wish is what it is, and not less."""
    if decision.wish <= decision.needed:
        largest = max(decision.terms, key=lambda term: term.known, default=None)
        return largest.reason if largest is not None and largest.known > 0 else IDLE
    if decision.missing and decision.wish >= decision.current:
        return METRICS_MISSING
    return WITHIN_BOUNDS if decision.wish > decision.highest or decision.capped_by else STABILIZING
