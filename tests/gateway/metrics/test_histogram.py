"""Metrics of one thread tell what `prometheus_client`'s own ones would."""

import random

from prometheus_client import CollectorRegistry, Histogram

from legato_gateway.metrics.histogram import UnlockedHistogram

BOUNDS = (0.1, 0.5, 1.0)


def _samples(registry: CollectorRegistry) -> list[tuple[str, dict[str, str], float]]:
    (family,) = registry.collect()
    return sorted(
        ((s.name, s.labels, round(s.value, 6)) for s in family.samples if not s.name.endswith("_created")), key=str
    )


def test_a_histogram_tells_the_same_as_the_library_s():
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = UnlockedHistogram("h", "Text", BOUNDS)
    ours.register(histogram)
    library = Histogram("h", "Text", buckets=BOUNDS, registry=theirs)
    source = random.Random(1)
    for value in (*BOUNDS, 0.0, 7.0, *(source.uniform(0, 2) for _ in range(100))):
        histogram.observe(value)
        library.observe(value)
    assert _samples(ours) == _samples(theirs)


def test_a_clock_that_went_back_counts_as_nothing():
    histogram, registry = UnlockedHistogram("h", "Text", BOUNDS), CollectorRegistry()
    histogram.observe(-1.0)
    registry.register(histogram)
    assert registry.get_sample_value("h_sum") == 0
    assert registry.get_sample_value("h_bucket", {"le": "0.1"}) == 1
