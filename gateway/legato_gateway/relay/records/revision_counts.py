"""Counts the requests of the old and the new revision while a canary runs, for the operator's comparison."""

from collections import defaultdict
from dataclasses import dataclass, field
from math import log

from legato_gateway.admission.demand import length_class
from legato_gateway.relay.sub_request import SubRequest
from legato_protocol.wire.canary import DurationBucket, RevisionReport

SHORTEST = 1e-6  # seconds: a duration of 0 has no logarithm


@dataclass(slots=True)
class _Sums:
    requests: int = 0
    logs: float = 0.0
    squares: float = 0.0


class DurationCounter:
    """Sums of the logarithms of durations, by the request's tokens in powers of two."""

    def __init__(self) -> None:
        self._sums: defaultdict[int, _Sums] = defaultdict(_Sums)

    def add(self, tokens: int, seconds: float) -> None:
        """Counts one request."""
        sums, value = self._sums[length_class(tokens)], log(max(seconds, SHORTEST))
        sums.requests += 1
        sums.logs += value
        sums.squares += value * value

    def buckets(self) -> tuple[DurationBucket, ...]:
        """Returns the buckets, shortest requests first."""
        return tuple(DurationBucket(least, s.requests, s.logs, s.squares) for least, s in sorted(self._sums.items()))


@dataclass(slots=True)
class _Revision:
    requests: int = 0
    failures: int = 0
    ttft: DurationCounter = field(default_factory=DurationCounter)
    tpot: DurationCounter = field(default_factory=DurationCounter)

    def report(self) -> RevisionReport:
        return RevisionReport(self.requests, self.failures, self.ttft.buckets(), self.tpot.buckets())


class RevisionCounts:
    """Attempts of both revisions. Durations count only for first attempts on one pair of workers."""

    def __init__(self) -> None:
        self.reset(0.0)

    def reset(self, now: float) -> None:
        """Starts again, since another canary was set: attempts from before do not count."""
        self._since = now
        self._revisions = {True: _Revision(), False: _Revision()}

    def placed(self, sub: SubRequest) -> None:
        """An attempt was sent to workers."""
        if (revision := self._of(sub)) is not None:
            revision.requests += 1

    def failed(self, sub: SubRequest) -> None:
        """An attempt failed, whether or not it is retried."""
        if (revision := self._of(sub)) is not None:
            revision.failures += 1

    def first_token(self, sub: SubRequest, now: float) -> None:
        """The first token of an attempt came."""
        if (revision := self._of(sub)) is not None and sub.attempt == 1 and sub.place is not None:
            revision.ttft.add(sub.place.to_compute, now - sub.placed_at)

    def answered(self, sub: SubRequest, per_token: float | None) -> None:
        """A choice is complete, with this mean time of each later token."""
        if (revision := self._of(sub)) is not None and sub.attempt == 1 and per_token is not None:
            revision.tpot.add(len(sub.generation.request.prompt), per_token)

    def report(self, new: bool) -> RevisionReport:
        """Returns the counts of the new, or of the old, revision."""
        return self._revisions[new].report()

    def _of(self, sub: SubRequest) -> _Revision | None:
        new = None if sub.place is None or sub.placed_at < self._since else sub.place.new_revision
        return None if new is None else self._revisions[new]
