"""Metrics of the operator itself."""

from collections.abc import Callable, Mapping

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from legato_operator.metrics.service_metrics import ServiceMetrics


class OperatorMetrics:
    """A `controller.Journal`, with counters of API calls and watch events. `services` has each service's metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._passes = Counter(
            "legato_operator_reconciles", "Passes over a service, by result", ("result",), registry=self.registry
        )
        self._seconds = Histogram(
            "legato_operator_reconcile_seconds", "Duration of a pass over a service", registry=self.registry
        )
        self._errors = Counter(
            "legato_operator_reconcile_errors", "Passes that failed, by error", ("error",), registry=self.registry
        )
        self._calls = Counter(
            "legato_operator_api_calls",
            "Calls to the API server, by verb, kind and outcome",
            ("verb", "kind", "outcome"),
            registry=self.registry,
        )
        self._events = Counter(
            "legato_operator_watch_events", "Events seen by watches, by kind", ("kind",), registry=self.registry
        )
        self._missed = Counter(
            "legato_operator_missed_events", "Changes that no watch reported in time", registry=self.registry
        )
        self.synced = Gauge(
            "legato_operator_cache_synced",
            "1 while passes read objects from watches, 0 while they ask the API server",
            registry=self.registry,
        )
        self.services = ServiceMetrics()
        self.registry.register(self.services)
        self.taken: Callable[[], Mapping[str, str]] = dict  # the owning release, by namespace
        self._taken = Gauge(
            "legato_operator_namespace_taken",
            "1 for a watched namespace with services of another release",
            ("namespace", "release"),
            registry=self.registry,
        )
        self.leader = Gauge("legato_operator_leader", "1 when this replica leads", registry=self.registry)

    def passed(self, seconds: float) -> None:
        self._passes.labels("done").inc()
        self._seconds.observe(seconds)

    def failed(self, seconds: float, error: Exception) -> None:
        self._passes.labels("failed").inc()
        self._errors.labels(type(error).__name__).inc()
        self._seconds.observe(seconds)

    def called(self, verb: str, kind: str, outcome: str) -> None:
        """Counts a call to the API server."""
        self._calls.labels(verb, kind, outcome).inc()

    def saw(self, kind: str) -> None:
        """Counts an event of a watch."""
        self._events.labels(kind).inc()

    def missed(self, count: int) -> None:
        """Counts changes that no watch reported."""
        self._missed.inc(count)

    async def answer(self, _request: web.Request) -> web.StreamResponse:
        """Answers `GET /metrics`."""
        return web.Response(body=self.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def text(self) -> bytes:
        """Returns the metrics in Prometheus' text format."""
        self._taken.clear()
        for namespace, release in self.taken().items():
            self._taken.labels(namespace, release).set(1)
        return generate_latest(self.registry)
