"""A decision as it stands in a service's status, and what is kept there of earlier ones. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from legato_operator.autoscaler.decision import PoolDecision, Term

MOST_RECORDS = 20
_DIGITS = 6  # significant ones: enough to recompute a wish


def of(decision: PoolDecision, now: str) -> dict[str, Any]:
    """One pool's decision, made at `now`, as the API spells it."""
    allowed = {} if decision.allowed is None else {"allowed": decision.allowed}
    return {
        "time": now,
        "current": decision.current,
        "wish": decision.wish,
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


def kept(known: Sequence[Any], new: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Records of changes, the oldest first and no more than `MOST_RECORDS`."""
    return [*known, *new][-MOST_RECORDS:]


def _term(term: Term) -> dict[str, Any]:
    numbers = {name: _rounded(value) for name, value in term.numbers.items()}
    return {"reason": term.reason, "workers": _rounded(term.known), "equation": term.equation, "numbers": numbers}


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
