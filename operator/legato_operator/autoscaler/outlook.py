"""Describes the conditions under which a pool's desired size would change. Pure."""

from dataclasses import replace

from legato_operator.autoscaler.decision import (
    COOLING_DOWN,
    METRICS_MISSING,
    REASONS,
    STABILIZING,
    PoolDecision,
)
from legato_operator.autoscaler.window import CONFIRMED_AFTER


def change(decision: PoolDecision, reason: str, left: float) -> str:
    """Returns the conditions for growth and for shrinking. `left` is the seconds until the pool may shrink."""
    return "; ".join(part for part in (_up(decision), _down(decision, reason, left)) if part)


def limited(decision: PoolDecision, allowed: int, by: str) -> PoolDecision:
    """Returns the decision with the size that the limits of all pools allow; `by` names the limiting field."""
    if allowed == decision.desired:
        return decision
    which = "more" if allowed < decision.desired else "fewer"
    change = f"has {which} than {allowed} only when {by} allows it: {decision.desired} are desired"
    return replace(decision, allowed=allowed, capped_by=by, change=change)


def _up(decision: PoolDecision) -> str:
    if decision.capped_by.endswith(".max"):
        return f"grows with a larger {decision.capped_by}: {decision.needed} are needed"
    known = [term for term in decision.terms if term.workers is not None]
    if not known:
        return "" if decision.desired else "grows with the first request"
    largest = max(known, key=lambda term: term.known)
    now = f"now {largest.known:.2f} for {REASONS[largest.reason]}"
    if decision.desired < decision.needed and not decision.capped_by:
        return f"grows when more than {decision.desired} have been needed for {CONFIRMED_AFTER:.0f} s: {now}"
    return f"grows when more than {decision.desired} are needed: {now}"


def _down(decision: PoolDecision, reason: str, left: float) -> str:
    if reason == METRICS_MISSING:
        return f"shrinks only when it is known again: {', '.join(decision.missing)}"
    if reason == STABILIZING:
        return f"shrinks in {max(0.0, left):.0f} s, if at most {decision.needed} are needed until then"
    if reason == COOLING_DOWN:
        return f"shrinks to 0 in {max(0.0, left):.0f} s, if nothing arrives or runs until then"
    return ""
