"""Compares the new revision of a canary with the old one, by what gateways counted of both over the same time. Pure.

Durations are compared as the ratio of geometric means among requests of similar length (strata by powers of two, each
weighted by n m / (n + m)), with the standard error of that difference of means. Failures are compared as two
proportions with a continuity correction. The new revision is worse only if it exceeds a limit by `CONFIDENCE` standard
errors, because the comparison is repeated many times; it is good if no estimate exceeds its limit.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from legato_operator.api.resources import CanarySpec
from legato_protocol.wire.canary import DurationBucket, RevisionReport

CONFIDENCE = 3.0  # standard errors: one chance in 700 for an estimate to be that far off
MORE_FAILURES = 0.01  # of requests, which a good revision may have in addition


class Finding(Enum):
    GOOD = "no worse than the limits allow"
    WORSE = "worse than the limits allow"
    OPEN = "too few requests for a decision"


@dataclass(frozen=True)
class RevisionComparison:
    finding: Finding
    text: str


@dataclass(frozen=True)
class _Ratio:
    """A ratio of durations, new to old, with the lower bound that `CONFIDENCE` gives."""

    value: float
    least: float


def compare(old: RevisionReport, new: RevisionReport, canary: CanarySpec) -> RevisionComparison:
    """Returns whether the new revision is good, worse, or not known well enough."""
    if min(old.requests, new.requests) < canary.min_requests:
        text = f"{new.requests} requests of the new revision and {old.requests} of the old one"
        return RevisionComparison(Finding.OPEN, f"{text}; {canary.min_requests} of each are needed")
    times = {"TTFT": _ratio(old.ttft, new.ttft), "TPOT": _ratio(old.tpot, new.tpot)}
    limit = 1 + canary.max_slowdown / 100
    text = "; ".join([*(_ratio_text(name, ratio) for name, ratio in times.items()), _failures_text(old, new)])
    if _fails_more(old, new) or any(ratio is not None and ratio.least > limit for ratio in times.values()):
        return RevisionComparison(Finding.WORSE, text)
    known = times["TTFT"] is not None and (times["TPOT"] is not None or not old.tpot)
    within = all(ratio is None or ratio.value <= limit for ratio in times.values())
    good = known and within and _rate(new) <= _rate(old) + MORE_FAILURES
    return RevisionComparison(Finding.GOOD if good else Finding.OPEN, text)


def total(reports: Iterable[RevisionReport]) -> RevisionReport:
    """Returns the sum of all gateways' reports of one revision."""
    every = tuple(reports)
    return RevisionReport(
        sum(report.requests for report in every),
        sum(report.failures for report in every),
        _merged(bucket for report in every for bucket in report.ttft),
        _merged(bucket for report in every for bucket in report.tpot),
    )


def _merged(buckets: Iterable[DurationBucket]) -> tuple[DurationBucket, ...]:
    merged: dict[int, DurationBucket] = {}
    for bucket in buckets:
        known = merged.get(bucket.least, DurationBucket(bucket.least, 0, 0.0, 0.0))
        sums = known.requests + bucket.requests, known.logs + bucket.logs, known.squares + bucket.squares
        merged[bucket.least] = DurationBucket(bucket.least, *sums)
    return tuple(merged[least] for least in sorted(merged))


def _ratio(old: Sequence[DurationBucket], new: Sequence[DurationBucket]) -> _Ratio | None:
    """Returns the ratio of durations, or None without requests of similar length on both sides."""
    before = {bucket.least: bucket for bucket in old}
    pairs = [(before[bucket.least], bucket) for bucket in new if bucket.least in before]
    weights = [one.requests * other.requests / (one.requests + other.requests) for one, other in pairs]
    if not pairs:
        return None
    spread = _variance(old), _variance(new)
    differences = [other.logs / other.requests - one.logs / one.requests for one, other in pairs]
    mean = sum(w * difference for w, difference in zip(weights, differences, strict=True)) / sum(weights)
    variances = [spread[0] / one.requests + spread[1] / other.requests for one, other in pairs]
    error = math.sqrt(sum(w * w * variance for w, variance in zip(weights, variances, strict=True))) / sum(weights)
    return _Ratio(math.exp(mean), math.exp(mean - CONFIDENCE * error))


def _variance(buckets: Sequence[DurationBucket]) -> float:
    """Returns the variance within strata; infinite if every stratum has one request only."""
    freedom = sum(bucket.requests - 1 for bucket in buckets)
    squares = sum(bucket.squares - bucket.logs**2 / bucket.requests for bucket in buckets)
    return max(0.0, squares) / freedom if freedom else math.inf


def _rate(report: RevisionReport) -> float:
    return min(1.0, report.failures / report.requests)


def _fails_more(old: RevisionReport, new: RevisionReport) -> bool:
    more = _rate(new) - _rate(old)
    pooled = min(1.0, (old.failures + new.failures) / (old.requests + new.requests))
    error = math.sqrt(pooled * (1 - pooled) * (1 / old.requests + 1 / new.requests))
    return more > MORE_FAILURES and more - 0.5 / new.requests > CONFIDENCE * error


def _ratio_text(name: str, ratio: _Ratio | None) -> str:
    if ratio is None:
        return f"{name} not measured on both revisions"
    return f"{name} {ratio.value:.2f} times the old revision's (at least {ratio.least:.2f})"


def _failures_text(old: RevisionReport, new: RevisionReport) -> str:
    return f"{new.failures} of {new.requests} attempts failed ({old.failures} of {old.requests} on the old revision)"
