"""A histogram without locks, cheap enough to update for every token.

`prometheus_client`'s histogram locks twice and searches the buckets one by one.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class UnlockedHistogram(Collector):
    """A histogram for the event loop's thread only. `bounds` are the buckets' upper bounds, in ascending order."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name, self._text, self._bounds = name, text, tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Counts a value, a negative one as 0: the difference of two clock readings may be slightly below 0."""
        if value < 0.0:
            value = 0.0
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text)
        below, buckets = 0, []
        for bound, count in zip((*map(float, self._bounds), "+Inf"), self._counts, strict=True):
            below += count
            buckets.append((str(bound), float(below)))
        family.add_metric([], buckets, self._sum)
        yield family
