"""Demand on this gateway, counted since its start. Pure: time is passed in."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import get_args

from legato_protocol.wire.demand import LengthBucket, WaitCause

RECENTLY = 60.0  # seconds for which a retry counts as recent


def length_class(tokens: int) -> int:
    """Returns the largest power of two that is at most `tokens`, or 0."""
    return 1 << (tokens.bit_length() - 1) if tokens else 0


class LengthCounter:
    """Counts sequences and their tokens by length, in powers of two."""

    def __init__(self) -> None:
        self._requests: Counter[int] = Counter()
        self._tokens: Counter[int] = Counter()

    def add(self, tokens: int) -> None:
        """Counts one sequence."""
        least = length_class(tokens)
        self._requests[least] += 1
        self._tokens[least] += tokens

    def buckets(self) -> tuple[LengthBucket, ...]:
        """Returns the buckets that are not empty, shortest first."""
        return tuple(
            LengthBucket(least, self._requests[least], self._tokens[least]) for least in sorted(self._requests)
        )


class Demand:
    """Counts arrivals, refusals, retries, lengths of answers, and waits of the first queued request by cause."""

    def __init__(self, on_first_queued: Callable[[], None] = lambda: None) -> None:
        """`on_first_queued` is called when a request is queued and none was before."""
        self._on_first_queued = on_first_queued
        self.arrivals = LengthCounter()  # by uncached prompt tokens
        self.refused: Counter[str] = Counter()  # by drop reason
        self._retried: dict[str, float] = {}  # time of the last new dispatch of a request, by its failure's code
        self.outputs = LengthCounter()
        self.output_squares = 0
        self._head_wait: dict[WaitCause, float] = dict.fromkeys(get_args(WaitCause), 0.0)
        self._cause: WaitCause | None = None
        self._since = 0.0

    def count_refusal(self, reason: str) -> None:
        """Counts a refused request or connection of a client by its drop reason."""
        self.refused[reason] += 1

    def finished(self, tokens: int) -> None:
        """Counts a choice that ended with this number of tokens."""
        self.outputs.add(tokens)
        self.output_squares += tokens * tokens

    def retried(self, code: str, now: float) -> None:
        """Records another dispatch after a failure with this code."""
        self._retried[code] = now

    def recent_retries(self, now: float) -> tuple[str, ...]:
        """Codes of failures after which requests were recently dispatched again."""
        return tuple(sorted(code for code, at in self._retried.items() if now - at < RECENTLY))

    def head(self, cause: WaitCause | None, now: float) -> None:
        """Records why the first queued request waits from now on; None: the queue is empty."""
        if self._cause is not None:
            self._head_wait[self._cause] += max(0.0, now - self._since)
        begins = self._cause is None and cause is not None
        self._cause, self._since = cause, now
        if begins:
            self._on_first_queued()

    def head_wait(self, now: float) -> Mapping[WaitCause, float]:
        """Returns the seconds so far, by cause."""
        self.head(self._cause, now)
        return dict(self._head_wait)
