"""The gateway's Prometheus metrics, in a registry of its own."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from legato_gateway.clients.identify import Clients
from legato_gateway.metrics.histogram import UnlockedHistogram
from legato_gateway.routing.kv_index import KVIndex
from legato_gateway.tokenizer.block_cache import CacheUse
from legato_protocol.process.followed_files import FollowedFiles
from legato_protocol.wire.demand import DemandReport, LengthBucket
from legato_protocol.wire.stream import HandoffReport

PREFIX = "legato_gateway_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LENGTHS = tuple((1 << power) - 1 for power in range(1, 18))  # tokens: the upper bounds of a report's buckets
NO_DEMAND = DemandReport("", 0.0, (), {}, (), 0.0, {}, (), 0, 0, 0, ())
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
STEPS = (
    0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
WAITS = (
    0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
_UNREADABLE = "1 while the files with certificate and key cannot be read, and earlier ones stay in use"

TIMES = {
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
COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {  # help text and labels by name
    "requests": ("Requests ended, by finish", ("finish",)),
    "placements": ("Attempts given to workers, by where the prompt is computed", ("prefill",)),
    "late_items": ("Token items of attempts that are over", ()),
    "redispatches": ("New attempts after a failure, by its code", ("reason",)),
    "migrations": ("Running sequences handed on by decode workers, by why they left", ("reason",)),
    "worker_failures": ("Requests that a worker failed", ()),
    "bad_frames": ("Frames refused, by worker", ("worker",)),
    "unknown_frames": ("Frames of later versions skipped, by worker", ("worker",)),
    "foreign_workers": ("Greetings of workers that serve another model, by worker", ("worker",)),
    "refused_tokens": ("Service tokens refused, by who refused", ("by",)),
    "closed_connections": ("Connections closed or not let in, by reason", ("reason",)),
}


class StoredCounts(Protocol):
    """The part of `ResponseStore` that is used here; `used` is in bytes."""

    @property
    def responses(self) -> int: ...

    @property
    def used(self) -> int: ...

    @property
    def evicted(self) -> int: ...


class Metrics(Collector):
    """Counts and measurements of the relay, and values that other parts of a gateway keep, read on request."""

    def __init__(
        self,
        index: KVIndex | None = None,
        clients: Clients | None = None,
        certificate: FollowedFiles[Any] | None = None,
        internal_tls: FollowedFiles[Any] | None = None,
        responses: StoredCounts | None = None,
        token_cache: CacheUse | None = None,
    ) -> None:
        """`responses` is None where they are not stored."""
        self._index = index
        self._clients = clients or Clients()
        self._certificate = certificate
        self._internal_tls = internal_tls
        self._responses = responses
        self._token_cache = token_cache or CacheUse()
        self._demand = NO_DEMAND
        self.output_tokens = 0
        self._cached = 0  # prompt tokens
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._active = Gauge(PREFIX + "active_requests", "Requests under way", registry=self.registry)
        self._counts = {
            name: Counter(PREFIX + name, text, labels, registry=self.registry)
            for name, (text, labels) in COUNTERS.items()
        }
        for by in ("gateway", "worker"):
            self._counts["refused_tokens"].labels(by)
        for reason in ("draining", "step_time", "kv_cache"):
            self._counts["migrations"].labels(reason)
        text = "Output tokens of a choice when it ended, as a share of its maximum, by finish"
        self._shares = Histogram(
            PREFIX + "output_limit_used_ratio", text, ["finish"], buckets=SHARES, registry=self.registry
        )
        text = "Prompt tokens of requests that had a token"
        self._prompts = UnlockedHistogram(PREFIX + "request_prompt_tokens", text, LENGTHS)
        self._times = {name: UnlockedHistogram(PREFIX + name, text, bounds) for name, (text, bounds) in TIMES.items()}
        self._inter_token = self._times["inter_token_latency_seconds"]
        for histogram in (self._prompts, *self._times.values()):
            self.registry.register(histogram)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics that other parts keep, and the demand."""
        for name, (text, gauge) in self._gauges().items():
            yield GaugeMetricFamily(PREFIX + name, text, value=gauge)
        for name, (text, count) in self._counters().items():
            yield CounterMetricFamily(PREFIX + name, text, value=count)
        demand = self._demand
        yield _lengths("arrived_prompt_tokens", "Uncached prompt tokens of a request", demand.arrivals)
        yield _lengths("output_length_tokens", "Tokens of a choice that finished", demand.outputs)
        causes = {str(cause): seconds for cause, seconds in demand.head_wait.items()}
        yield _labelled("refused_requests", "Requests refused, by drop reason", "reason", demand.refused)
        yield _labelled("head_wait_seconds", "Seconds that the first queued request waited, by cause", "cause", causes)

    def render(self, demand: DemandReport) -> tuple[bytes, str]:
        """Returns all metrics as Prometheus text, and its content type."""
        self._demand = demand
        return generate_latest(self.registry), CONTENT_TYPE

    def count(self, name: str, *labels: str) -> None:
        """Adds 1 to a counter of `COUNTERS`."""
        counter = self._counts[name]
        (counter.labels(*labels) if labels else counter).inc()

    def started(self) -> None:
        self._active.inc()

    def ended(self, finish: str, worker_fault: bool) -> None:
        self._active.dec()
        self.count("requests", finish.split(",", 1)[0] or "cancelled")
        if worker_fault:
            self.count("worker_failures")

    def used_limit(self, finish: str, share: float) -> None:
        """Counts the end of a choice with tokens; `share` is their share of its maximum."""
        self._shares.labels(finish).observe(share)

    def first_token(self, seconds: float, prompt: int, cached: int) -> None:
        """Records a request's first token, `seconds` after its arrival."""
        self._times["time_to_first_token_seconds"].observe(seconds)
        self._prompts.observe(prompt)
        self._cached += cached

    def phases(self, queue: float, prefill: float, handoff: float | None) -> None:
        """Records the phases of a time to first token; `handoff` is None if it stayed on the prefilling worker."""
        self._times["request_queue_time_seconds"].observe(queue)
        self._times["request_prefill_time_seconds"].observe(prefill)
        if handoff is not None:
            self._times["request_handoff_time_seconds"].observe(handoff)

    def next_token(self, seconds: float, second: bool) -> None:
        """Records the seconds between two tokens of a choice; `second`: they are its first and second."""
        self._inter_token.observe(seconds)
        if second:
            self._times["request_first_decode_time_seconds"].observe(seconds)

    def completed(self, seconds: float, per_token: Iterable[float]) -> None:
        """Records a complete request's duration, and the time per token of each of its choices."""
        self._times["e2e_request_latency_seconds"].observe(seconds)
        for each in per_token:
            self._times["request_time_per_output_token_seconds"].observe(each)

    def handed_over(self, report: HandoffReport) -> None:
        self._times["handoff_seconds"].observe(report.seconds)
        self._times["handoff_boundary_seconds"].observe(report.boundary)

    def _gauges(self) -> Mapping[str, tuple[str, float]]:
        """Returns help text and value by name."""
        text = "1 while the file with API keys cannot be read, and earlier ones stay in force"
        stored, size = (self._responses.responses, self._responses.used) if self._responses else (0, 0)
        values: dict[str, tuple[str, float]] = {
            "api_keys_invalid": (text, bool(self._clients.problem)),
            "tls_certificate_invalid": (_UNREADABLE, bool(self._certificate and self._certificate.problem)),
            "internal_tls_invalid": (_UNREADABLE, bool(self._internal_tls and self._internal_tls.problem)),
            "stored_responses": ("Responses that are stored", stored),
            "stored_response_bytes": ("Bytes that they take", size),
            "token_cache_bytes": ("Bytes of cached token ids, in all processes", self._token_cache.used),
            "queued_requests": ("Requests without a token that no worker has", self._demand.queued_requests),
            "queued_tokens": ("Their prompt tokens that no cache covers", self._demand.queued_tokens),
        }
        if self._index is not None:
            values["kv_index_blocks"] = ("Distinct blocks in the KV index", self._index.blocks)
            values["kv_index_max_blocks"] = ("Most blocks it may hold", self._index.max_blocks)
        return values

    def _counters(self) -> Mapping[str, tuple[str, float]]:
        evicted = self._responses.evicted if self._responses else 0
        values: dict[str, tuple[str, float]] = {
            "unauthenticated_requests": ("Requests refused without a known API key", self._clients.refused),
            "stored_responses_evicted": ("Responses dropped early for lack of room", evicted),
            "output_tokens": ("Tokens accepted for clients", self.output_tokens),
            "token_cache_hit_characters": ("Characters whose token ids were in the cache", self._token_cache.hits),
            "token_cache_missed_characters": ("Characters whose token ids were not there", self._token_cache.misses),
            "prompt_tokens_cached": ("Prompt tokens that were in a worker's prefix cache", self._cached),
        }
        if self._index is not None:
            values["kv_index_evicted_blocks"] = ("Blocks forgotten for newer ones", self._index.evicted)
            values["kv_index_dropped_blocks"] = ("Blocks of snapshots not taken in", self._index.dropped)
        return values


def _lengths(name: str, text: str, buckets: tuple[LengthBucket, ...]) -> Metric:
    total = sum(bucket.requests for bucket in buckets)
    below = [(str(float(most)), float(sum(b.requests for b in buckets if b.least <= most))) for most in LENGTHS]
    family = HistogramMetricFamily(PREFIX + name, text)
    family.add_metric([], [*below, ("+Inf", float(total))], float(sum(bucket.tokens for bucket in buckets)))
    return family


def _labelled(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for key, count in sorted(values.items()):
        family.add_metric([key], count)
    return family
