"""Metrics of the responses that are stored."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from legato_gateway.openai.responses.store import ResponseStore


class StoredResponses(Collector):
    """How many there are, what they take, and how many had no room; nothing where responses are not stored."""

    def __init__(self, store: ResponseStore | None) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        prefix, store = "legato_gateway_stored_", self._store
        count, used, evicted = (store.responses, store.used, store.evicted) if store else (0, 0, 0)
        yield GaugeMetricFamily(prefix + "responses", "Responses that are stored", value=count)
        yield GaugeMetricFamily(prefix + "response_bytes", "Bytes that they take", value=used)
        text = "Responses dropped before their time for want of room"
        yield CounterMetricFamily(prefix + "responses_evicted", text, value=evicted)
