"""Metrics that are collected on request, from the parts that keep their numbers."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from legato_gateway.clients.identify import Clients
from legato_gateway.routing.kv_index import KVIndex
from legato_protocol.process.followed_files import FollowedFiles
from legato_protocol.wire.demand import DemandReport, LengthBucket

LENGTHS = tuple((1 << power) - 1 for power in range(1, 18))  # tokens: the upper bounds of a report's buckets
NO_DEMAND = DemandReport("", 0.0, (), {}, (), 0.0, {}, (), 0, 0, 0, ())


class IndexMetrics(Collector):
    """Size and losses of the KV index."""

    def __init__(self, index: KVIndex) -> None:
        self._index = index

    def collect(self) -> Iterator[Metric]:
        index, prefix = self._index, "legato_gateway_kv_index_"
        yield GaugeMetricFamily(prefix + "blocks", "Distinct blocks in the KV index", value=index.blocks)
        yield GaugeMetricFamily(prefix + "max_blocks", "Most blocks it may hold", value=index.max_blocks)
        yield CounterMetricFamily(prefix + "evicted_blocks", "Blocks forgotten for newer ones", value=index.evicted)
        yield CounterMetricFamily(prefix + "dropped_blocks", "Blocks of snapshots not taken in", value=index.dropped)


class ClientMetrics(Collector):
    """Metrics of API keys."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def collect(self) -> Iterator[Metric]:
        prefix, clients = "legato_gateway_", self._clients
        text = "Requests refused without a known API key"
        yield CounterMetricFamily(prefix + "unauthenticated_requests", text, value=clients.refused)
        text = "1 while the file with API keys cannot be read, and earlier ones stay in force"
        yield GaugeMetricFamily(prefix + "api_keys_invalid", text, value=bool(clients.problem))


class CertificateMetrics(Collector):
    """Validity of the TLS files, for clients and between the service's processes."""

    def __init__(self, files: Mapping[str, FollowedFiles[Any] | None]) -> None:
        self._files = files

    def collect(self) -> Iterator[Metric]:
        text = "1 while the files with certificate and key cannot be read, and earlier ones stay in use"
        for name, each in self._files.items():
            yield GaugeMetricFamily(f"legato_gateway_{name}_invalid", text, value=bool(each and each.problem))


class StoredCounts(Protocol):
    """The part of `ResponseStore` that is used here; `used` is in bytes."""

    @property
    def responses(self) -> int: ...

    @property
    def used(self) -> int: ...

    @property
    def evicted(self) -> int: ...


class StoredResponseMetrics(Collector):
    """Number, size and evictions of stored responses. All are 0 where responses are not stored."""

    def __init__(self, store: StoredCounts | None) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        prefix, store = "legato_gateway_stored_", self._store
        count, used, evicted = (store.responses, store.used, store.evicted) if store else (0, 0, 0)
        yield GaugeMetricFamily(prefix + "responses", "Responses that are stored", value=count)
        yield GaugeMetricFamily(prefix + "response_bytes", "Bytes that they take", value=used)
        text = "Responses dropped early for lack of room"
        yield CounterMetricFamily(prefix + "responses_evicted", text, value=evicted)


class DemandMetrics(Collector):
    """The report of demand as metrics."""

    def __init__(self) -> None:
        self.report = NO_DEMAND

    def collect(self) -> Iterator[Metric]:
        report, prefix = self.report, "legato_gateway_"
        gauges = {
            "held_requests": ("Requests without a token that no worker has", report.held_requests),
            "held_tokens": ("Their prompt tokens that no cache covers", report.held_tokens),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(prefix + name, text, value=value)
        yield _lengths(prefix + "arrived_prompt_tokens", "Uncached prompt tokens of a request", report.arrivals)
        yield _lengths(prefix + "output_length_tokens", "Tokens of a choice that finished", report.outputs)
        causes = {str(cause): seconds for cause, seconds in report.head_wait.items()}
        labelled: dict[str, tuple[str, str, Mapping[str, float]]] = {
            "refused_requests": ("Requests refused, by drop reason", "reason", report.refused),
            "head_wait_seconds": ("What the first held request waited for", "cause", causes),
        }
        for name, (text, label, values) in labelled.items():
            family = CounterMetricFamily(prefix + name, text, labels=[label])
            for key, count in sorted(values.items()):
                family.add_metric([key], count)
            yield family


def _lengths(name: str, text: str, buckets: tuple[LengthBucket, ...]) -> Metric:
    total = sum(bucket.requests for bucket in buckets)
    below = [(str(float(most)), float(sum(b.requests for b in buckets if b.least <= most))) for most in LENGTHS]
    family = HistogramMetricFamily(name, text)
    family.add_metric([], [*below, ("+Inf", float(total))], float(sum(bucket.tokens for bucket in buckets)))
    return family
