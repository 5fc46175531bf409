"""Recent demand: differences of gateways' counters over a window. Pure: time is passed in.

Counters belong to a gateway's process and restart from 0 with it; only counters of the same process are subtracted, so
no rate is negative. Counts from before a gateway's first report are ignored, unless it started after the window began.
"""

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from legato_operator.autoscaler.signals import OutputLengths, PromptLengths
from legato_protocol.wire.demand import DemandReport, LengthBucket, WaitCause

WINDOW = 60.0  # seconds
RECENT = 10.0
NEWEST = 4.0
MOST_KNOWN = 1024  # remembered gateway processes

_K = TypeVar("_K")


@dataclass(frozen=True)
class DemandCounts:
    """Sums of counters, or shares of them."""

    requests: Mapping[int, float] = field(default_factory=dict)  # arrivals, by the minimum tokens of their bucket
    tokens: Mapping[int, float] = field(default_factory=dict)
    outputs: float = 0.0
    output_tokens: float = 0.0
    output_squares: float = 0.0
    head_wait: Mapping[WaitCause, float] = field(default_factory=dict)

    @classmethod
    def from_report(cls, report: DemandReport) -> "DemandCounts":
        """Returns a gateway's counters since its start."""
        return cls(
            {bucket.least: bucket.requests for bucket in report.arrivals},
            {bucket.least: bucket.tokens for bucket in report.arrivals},
            sum(bucket.requests for bucket in report.outputs),
            sum(bucket.tokens for bucket in report.outputs),
            report.output_squares,
            report.head_wait,
        )

    def plus(self, other: "DemandCounts", share: float = 1) -> "DemandCounts":
        """Returns the sum with a share of `other`; -1 subtracts it."""
        return DemandCounts(
            _plus(self.requests, other.requests, share),
            _plus(self.tokens, other.tokens, share),
            self.outputs + share * other.outputs,
            self.output_tokens + share * other.output_tokens,
            self.output_squares + share * other.output_squares,
            _plus(self.head_wait, other.head_wait, share),
        )

    def arrivals(self) -> tuple[PromptLengths, ...]:
        """Returns the lengths of arrived prompts, shortest first, without empty buckets."""
        buckets = ((least, round(n), round(self.tokens[least])) for least, n in sorted(self.requests.items()))
        return tuple(PromptLengths(*bucket) for bucket in buckets if bucket[1])

    def output(self) -> OutputLengths | None:
        """Returns the lengths of finished outputs, or None if none finished."""
        if self.outputs < 0.5:
            return None
        mean = self.output_tokens / self.outputs
        return OutputLengths(mean, math.sqrt(max(0.0, self.output_squares / self.outputs - mean * mean)))


class DemandWindow:
    """Sums of the counters of all gateways of a service, over time."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._known: OrderedDict[str, tuple[float, DemandCounts]] = (
            OrderedDict()
        )  # last report with its time, by gateway
        self._sums: deque[tuple[float, DemandCounts]] = deque()

    def add(self, reports: Iterable[DemandReport], now: float) -> None:
        """Adds the reports of this time. A gateway's counts since its last report are spread over the time between."""
        if self._sums and now <= self._sums[-1][0]:  # the clock was set back
            self._began = now
            self._known.clear()
            self._sums.clear()
        self._sums.append((now, self._sums[-1][1] if self._sums else DemandCounts()))
        for report in reports:
            counts = DemandCounts.from_report(report)
            before = self._known.pop(report.gateway, None)
            if before is None and report.uptime < now - self._began:
                before = now - report.uptime, DemandCounts()
            if before is not None:
                self._spread(counts.plus(before[1], -1), before[0], now)
            self._known[report.gateway] = now, counts
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        while len(self._sums) > 2 and now - self._sums[1][0] >= WINDOW:
            self._sums.popleft()

    def fill(self, until: float, every: float) -> None:
        """Adds reports without changes every `every` seconds after the last ones, up to the time `until`."""
        while self._sums and (now := max(self._sums[-1][0] + every, until - WINDOW)) <= until:
            self._sums.append((now, self._sums[-1][1]))
            for gateway, (_, counts) in self._known.items():
                self._known[gateway] = now, counts

    def last(self, seconds: float) -> tuple[float, DemandCounts] | None:
        """Returns the duration and counts of the last `seconds`, or slightly more; None before two reports."""
        if len(self._sums) < 2:
            return None
        now, total = self._sums[-1]
        since, before = next((entry for entry in reversed(self._sums) if now - entry[0] >= seconds), self._sums[0])
        return now - since, total.plus(before, -1)

    def _spread(self, counted: DemandCounts, since: float, now: float) -> None:
        for i, (at, total) in enumerate(self._sums):
            if at > since:
                self._sums[i] = at, total.plus(counted, (at - since) / (now - since))


def merged(buckets: Iterable[LengthBucket]) -> tuple[PromptLengths, ...]:
    """Merges the buckets of several gateways by length, shortest first."""
    requests: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    for bucket in buckets:
        requests[bucket.least] += bucket.requests
        tokens[bucket.least] += bucket.tokens
    return tuple(PromptLengths(least, requests[least], tokens[least]) for least in sorted(requests))


def _plus(one: Mapping[_K, float], other: Mapping[_K, float], share: float) -> dict[_K, float]:
    return {key: one.get(key, 0) + share * other.get(key, 0) for key in {**one, **other}}
