"""The gateway's Prometheus metrics, in a registry of its own."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from legato_gateway.clients.identify import Clients
from legato_gateway.histogram import UnlockedCounter, UnlockedHistogram
from legato_gateway.openai.responses.store import ResponseStore
from legato_gateway.relay.timing import FirstTokenPhases
from legato_gateway.routing.kv_index import KVIndex
from legato_gateway.stored_responses import StoredResponses
from legato_protocol.demand import DemandReport, LengthBucket
from legato_protocol.followed_files import FollowedFiles
from legato_protocol.stream import HandoffReport

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
STEPS = (
    0.0025,
    0.005,
    0.01,
    0.015,
    0.02,
    0.025,
    0.03,
    0.04,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
WAITS = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    3.0,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
)
LENGTHS = tuple((1 << power) - 1 for power in range(1, 18))  # tokens: the most of each bucket of a report
NO_DEMAND = DemandReport("", 0.0, (), {}, (), 0.0, {}, (), 0, 0, 0, ())


class Metrics:
    """What the relay counts, and how large `index` is."""

    def __init__(
        self,
        index: KVIndex | None = None,
        clients: Clients | None = None,
        certificate: FollowedFiles[Any] | None = None,
        internal_tls: FollowedFiles[Any] | None = None,
        responses: ResponseStore | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        if index is not None:
            registry.register(_Index(index))
        registry.register(_Clients(clients or Clients()))
        registry.register(_Certificates({"tls_certificate": certificate, "internal_tls": internal_tls}))
        registry.register(StoredResponses(responses))
        self._demand = _Demand()
        registry.register(self._demand)
        self._active = Gauge("legato_gateway_active_requests", "Requests under way", registry=registry)
        self._ended = Counter("legato_gateway_requests", "Requests ended, by finish", ["finish"], registry=registry)
        self._late = Counter("legato_gateway_late_items", "Token items of attempts that are over", registry=registry)
        self._redispatched = Counter(
            "legato_gateway_redispatches", "New attempts after a failure, by its code", ["reason"], registry=registry
        )
        self._migrated = Counter(
            "legato_gateway_migrations", "Sequences handed off by draining workers", registry=registry
        )
        self._failed = Counter("legato_gateway_worker_failures", "Requests that a worker failed", registry=registry)
        self._bad = Counter("legato_gateway_bad_frames", "Frames refused, by worker", ["worker"], registry=registry)
        self._unknown = Counter(
            "legato_gateway_unknown_frames",
            "Frames of later versions skipped, by worker",
            ["worker"],
            registry=registry,
        )
        self._foreign = Counter(
            "legato_gateway_foreign_workers",
            "Greetings of workers that serve another model, by worker",
            ["worker"],
            registry=registry,
        )
        self._refused = Counter(
            "legato_gateway_refused_tokens", "Service tokens refused, by who refused", ["by"], registry=registry
        )
        for by in ("gateway", "worker"):
            self._refused.labels(by)
        self._connections = Counter(
            "legato_gateway_closed_connections",
            "Connections closed or not let in, by reason",
            ["reason"],
            registry=registry,
        )
        self.output_tokens = self._counter("output_tokens", "Tokens accepted for clients")
        self._cached = self._counter("prompt_tokens_cached", "Prompt tokens that a worker's prefix cache held")
        self._prompts = self._histogram("request_prompt_tokens", "Prompt tokens of requests that had a token", LENGTHS)
        times = {
            "time_to_first_token_seconds": ("From a request's arrival to its first token", WAITS),
            "request_queue_time_seconds": ("From its arrival to the step in which its prefill begins", WAITS),
            "request_prefill_time_seconds": ("From that step to the end of its prefill", WAITS),
            "request_handoff_time_seconds": ("From the end of its prefill to its first token elsewhere", SECONDS),
            "request_first_decode_time_seconds": ("From the first to the second token of a choice", STEPS),
            "inter_token_latency_seconds": ("From one token of a choice to the next", STEPS),
            "request_time_per_output_token_seconds": ("Mean of that over a choice that is complete", STEPS),
            "e2e_request_latency_seconds": ("From a request's arrival to its end, of complete ones", WAITS),
            "handoff_seconds": ("From grant to commit", SECONDS),
            "handoff_boundary_seconds": ("From the sender's last message to the first token", SECONDS),
        }
        self._times = {name: self._histogram(name, text, bounds) for name, (text, bounds) in times.items()}
        self._inter_token = self._times["inter_token_latency_seconds"]

    def _counter(self, name: str, text: str) -> UnlockedCounter:
        made = UnlockedCounter(f"legato_gateway_{name}", text)
        self.registry.register(made)
        return made

    def _histogram(self, name: str, text: str, bounds: Sequence[float]) -> UnlockedHistogram:
        made = UnlockedHistogram(f"legato_gateway_{name}", text, bounds)
        self.registry.register(made)
        return made

    def render(self, demand: DemandReport) -> tuple[bytes, str]:
        """All metrics as Prometheus text, and its content type."""
        self._demand.report = demand
        return generate_latest(self.registry), CONTENT_TYPE

    def started(self) -> None:
        self._active.inc()

    def ended(self, finish: str, worker_fault: bool) -> None:
        self._active.dec()
        self._ended.labels(finish.split(",", 1)[0] or "cancelled").inc()
        if worker_fault:
            self._failed.inc()

    def first_token(self, seconds: float, prompt: int, cached: int) -> None:
        """The first token of a request, whose prompt has so many tokens, came so long after it."""
        self._times["time_to_first_token_seconds"].observe(seconds)
        self._prompts.observe(prompt)
        self._cached.value += cached

    def phases(self, phases: FirstTokenPhases) -> None:
        """What the time to the first token went to."""
        self._times["request_queue_time_seconds"].observe(phases.queue)
        self._times["request_prefill_time_seconds"].observe(phases.prefill)
        if phases.handoff is not None:
            self._times["request_handoff_time_seconds"].observe(phases.handoff)

    def next_token(self, seconds: float, second: bool) -> None:
        """A token of a choice came so long after the one before; `second`: that was its first."""
        self._inter_token.observe(seconds)
        if second:
            self._times["request_first_decode_time_seconds"].observe(seconds)

    def completed(self, seconds: float, per_token: Iterable[float]) -> None:
        """A request got all it asked for, so long after it came; its choices took that long for each token."""
        self._times["e2e_request_latency_seconds"].observe(seconds)
        for each in per_token:
            self._times["request_time_per_output_token_seconds"].observe(each)

    def connection_closed(self, reason: str) -> None:
        self._connections.labels(reason).inc()

    def late_item(self) -> None:
        self._late.inc()

    def redispatched(self, reason: str) -> None:
        self._redispatched.labels(reason).inc()

    def migrated(self) -> None:
        self._migrated.inc()

    def bad_frame(self, worker: str) -> None:
        self._bad.labels(worker).inc()

    def unknown_kind(self, worker: str) -> None:
        self._unknown.labels(worker).inc()

    def foreign(self, worker: str) -> None:
        self._foreign.labels(worker).inc()

    def token_refused(self, by: str) -> None:
        """By a worker, of this gateway; or by this gateway, of somebody who asked at its control port."""
        self._refused.labels(by).inc()

    def handed_over(self, report: HandoffReport) -> None:
        self._times["handoff_seconds"].observe(report.seconds)
        self._times["handoff_boundary_seconds"].observe(report.boundary)


class _Index(Collector):
    """What the KV index holds, and what it has no room for."""

    def __init__(self, index: KVIndex) -> None:
        self._index = index

    def collect(self) -> Iterator[Metric]:
        index, prefix = self._index, "legato_gateway_kv_index_"
        yield GaugeMetricFamily(prefix + "blocks", "Distinct blocks in the KV index", value=index.blocks)
        yield GaugeMetricFamily(prefix + "max_blocks", "Most blocks it may hold", value=index.max_blocks)
        yield CounterMetricFamily(prefix + "evicted_blocks", "Blocks forgotten for newer ones", value=index.evicted)
        yield CounterMetricFamily(prefix + "dropped_blocks", "Blocks of snapshots not taken in", value=index.dropped)


class _Clients(Collector):
    """What is known of API keys."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def collect(self) -> Iterator[Metric]:
        prefix, clients = "legato_gateway_", self._clients
        text = "Requests refused for want of a known API key"
        yield CounterMetricFamily(prefix + "unauthenticated_requests", text, value=clients.refused)
        text = "1 while the file with API keys cannot be read, and those of before stay in force"
        yield GaugeMetricFamily(prefix + "api_keys_invalid", text, value=bool(clients.problem))


class _Certificates(Collector):
    """Whether the files of TLS are good, for clients and between the service's processes."""

    def __init__(self, files: Mapping[str, FollowedFiles[Any] | None]) -> None:
        self._files = files

    def collect(self) -> Iterator[Metric]:
        text = "1 while the files with certificate and key cannot be read, and those of before stay in use"
        for name, each in self._files.items():
            yield GaugeMetricFamily(f"legato_gateway_{name}_invalid", text, value=bool(each and each.problem))


class _Demand(Collector):
    """What the report of demand says, as metrics."""

    def __init__(self) -> None:
        self.report = NO_DEMAND

    def collect(self) -> Iterator[Metric]:
        told, prefix = self.report, "legato_gateway_"
        gauges = {
            "held_requests": ("Requests without a token that no worker has", told.held_requests),
            "held_tokens": ("Their prompt tokens that no cache covers", told.held_tokens),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(prefix + name, text, value=value)
        yield _lengths(prefix + "arrived_prompt_tokens", "Uncached prompt tokens of a request", told.arrivals)
        yield _lengths(prefix + "output_length_tokens", "Tokens of a choice that finished", told.outputs)
        causes = {str(cause): seconds for cause, seconds in told.head_wait.items()}
        labelled: dict[str, tuple[str, str, Mapping[str, float]]] = {
            "refused_requests": ("Requests refused here, by drop reason", "reason", told.refused),
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
