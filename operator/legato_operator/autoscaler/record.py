"""Formats decisions for a service's status, and keeps records of earlier ones. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from legato_operator.autoscaler.decision import PoolDecision, Term

MOST_RECORDS = 20
_DIGITS = 6  # significant digits: enough to recompute a decision


def entry(decision: PoolDecision, now: str) -> dict[str, Any]:
    """Returns one pool's decision, made at `now`, in the API's format."""
    allowed = {} if decision.allowed is None else {"allowed": decision.allowed}
    return {
        "time": now,
        "current": decision.current,
        "recommended": decision.desired,
        **allowed,
        "needed": decision.needed,
        "highest": decision.highest,
        "reason": decision.reason,
        "cappedBy": decision.capped_by,
        "change": decision.change,
        "missing": list(decision.missing),
        **({"unmet": list(decision.unmet.values())} if decision.unmet else {}),
        "terms": [_term(term) for term in decision.terms if term.workers is not None],
    }


def append(known: Sequence[Any], new: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Returns the records of changes, oldest first and at most `MOST_RECORDS`."""
    return [*known, *new][-MOST_RECORDS:]


def _term(term: Term) -> dict[str, Any]:
    numbers = {name: _rounded(value) for name, value in term.numbers.items()}
    return {"reason": term.reason, "workers": _rounded(term.known), "equation": term.equation, "numbers": numbers}


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
