"""What arrived lately, from gateways' counters: differences of their sums over a window. Pure: time is passed in.

A gateway is known by the name of its process. Another process counts from 0 again, so nothing is ever subtracted from
the counters of another, and no rate is negative. What a gateway counted before it was first asked is not known to be
recent, unless it began after that.
"""

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from legato_operator.autoscaler.signals import OutputLengths, PromptLengths
from legato_protocol.demand import DemandReport, LengthBucket, WaitCause

WINDOW = 60.0  # seconds
RECENT = 10.0
NEWEST = 4.0
MOST_KNOWN = 1024  # processes of gateways whose counters are remembered

_K = TypeVar("_K")


@dataclass(frozen=True)
class DemandCounts:
    """Sums of counters, or of shares of them."""

    requests: Mapping[int, float] = field(default_factory=dict)  # arrivals, by the least tokens of their bucket
    tokens: Mapping[int, float] = field(default_factory=dict)
    outputs: float = 0.0
    output_tokens: float = 0.0
    output_squares: float = 0.0
    head_wait: Mapping[WaitCause, float] = field(default_factory=dict)

    @classmethod
    def of(cls, report: DemandReport) -> "DemandCounts":
        """What a gateway counted since its start."""
        return cls(
            {bucket.least: bucket.requests for bucket in report.arrivals},
            {bucket.least: bucket.tokens for bucket in report.arrivals},
            sum(bucket.requests for bucket in report.outputs),
            sum(bucket.tokens for bucket in report.outputs),
            report.output_squares,
            report.head_wait,
        )

    def plus(self, other: "DemandCounts", share: float = 1) -> "DemandCounts":
        """With a share of `other`; -1 takes it off."""
        return DemandCounts(
            _plus(self.requests, other.requests, share),
            _plus(self.tokens, other.tokens, share),
            self.outputs + share * other.outputs,
            self.output_tokens + share * other.output_tokens,
            self.output_squares + share * other.output_squares,
            _plus(self.head_wait, other.head_wait, share),
        )

    def arrivals(self) -> tuple[PromptLengths, ...]:
        """Those with a request, shortest first."""
        found = ((least, round(n), round(self.tokens[least])) for least, n in sorted(self.requests.items()))
        return tuple(PromptLengths(*entry) for entry in found if entry[1])

    def output(self) -> OutputLengths | None:
        """None where nothing finished."""
        if self.outputs < 0.5:
            return None
        mean = self.output_tokens / self.outputs
        return OutputLengths(mean, math.sqrt(max(0.0, self.output_squares / self.outputs - mean * mean)))


class DemandWindow:
    """The counters of all gateways of a service, added up as they are told."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._known: OrderedDict[str, tuple[float, DemandCounts]] = OrderedDict()  # when it was told, by gateway
        self._sums: deque[tuple[float, DemandCounts]] = deque()

    def add(self, reports: Iterable[DemandReport], now: float) -> None:
        """What gateways tell at this time. One that did not answer for a while has counted on in that time."""
        if self._sums and now <= self._sums[-1][0]:  # the clock was set back
            self._began = now
            self._known.clear()
            self._sums.clear()
        self._sums.append((now, self._sums[-1][1] if self._sums else DemandCounts()))
        for report in reports:
            counts = DemandCounts.of(report)
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

    def last(self, seconds: float) -> tuple[float, DemandCounts] | None:
        """In how many seconds what was counted: the last ones, as many or a little more; None before two reports."""
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
    """The same lengths of several gateways together, shortest first."""
    requests: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    for bucket in buckets:
        requests[bucket.least] += bucket.requests
        tokens[bucket.least] += bucket.tokens
    return tuple(PromptLengths(least, requests[least], tokens[least]) for least in sorted(requests))


def _plus(one: Mapping[_K, float], other: Mapping[_K, float], share: float) -> dict[_K, float]:
    return {key: one.get(key, 0) + share * other.get(key, 0) for key in {**one, **other}}
