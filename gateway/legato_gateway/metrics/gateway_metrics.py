"""The gateway's Prometheus metrics, in a registry of its own."""

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.registry import Collector

from legato_gateway.clients.identify import Clients
from legato_gateway.metrics.collectors import (
    LENGTHS,
    CertificateMetrics,
    ClientMetrics,
    DemandMetrics,
    IndexMetrics,
    StoredCounts,
    StoredResponseMetrics,
)
from legato_gateway.metrics.histogram import UnlockedCounter, UnlockedHistogram
from legato_gateway.routing.choose import PrefillAt
from legato_gateway.routing.kv_index import KVIndex
from legato_gateway.routing.rebalancing import MigrationReason
from legato_protocol.process.followed_files import FollowedFiles
from legato_protocol.wire.demand import DemandReport
from legato_protocol.wire.stream import HandoffReport

PREFIX = "legato_gateway_"
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
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)

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


class Metrics:
    """Counts and measurements of the relay, and metrics collected from the other parts of a gateway."""

    def __init__(
        self,
        index: KVIndex | None = None,
        clients: Clients | None = None,
        certificate: FollowedFiles[Any] | None = None,
        internal_tls: FollowedFiles[Any] | None = None,
        responses: StoredCounts | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        self._demand = DemandMetrics()
        self._collect(
            ClientMetrics(clients or Clients()),
            CertificateMetrics({"tls_certificate": certificate, "internal_tls": internal_tls}),
            StoredResponseMetrics(responses),
            self._demand,
            *([IndexMetrics(index)] if index is not None else []),
        )
        self._active = Gauge(PREFIX + "active_requests", "Requests under way", registry=self.registry)
        self._counts = {name: self._counter(name, text, labels) for name, (text, labels) in COUNTERS.items()}
        for by in ("gateway", "worker"):
            self._counts["refused_tokens"].labels(by)
        for reason in ("draining", "step_time", "kv_cache"):
            self._counts["migrations"].labels(reason)
        text = "Output tokens of a choice when it ended, as a share of its maximum, by finish"
        self._shares = Histogram(
            PREFIX + "output_limit_used_ratio", text, ["finish"], buckets=SHARES, registry=self.registry
        )
        self.output_tokens = UnlockedCounter(PREFIX + "output_tokens", "Tokens accepted for clients")
        text = "Prompt tokens that a worker's prefix cache held"
        self._cached = UnlockedCounter(PREFIX + "prompt_tokens_cached", text)
        text = "Prompt tokens of requests that had a token"
        self._prompts = UnlockedHistogram(PREFIX + "request_prompt_tokens", text, LENGTHS)
        self._times = {name: UnlockedHistogram(PREFIX + name, text, bounds) for name, (text, bounds) in TIMES.items()}
        self._inter_token = self._times["inter_token_latency_seconds"]
        self._collect(self.output_tokens, self._cached, self._prompts, *self._times.values())

    def _collect(self, *collectors: Collector) -> None:
        for each in collectors:
            self.registry.register(each)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def render(self, demand: DemandReport) -> tuple[bytes, str]:
        """Returns all metrics as Prometheus text, and its content type."""
        self._demand.report = demand
        return generate_latest(self.registry), CONTENT_TYPE

    def started(self) -> None:
        self._active.inc()

    def ended(self, finish: str, worker_fault: bool) -> None:
        self._active.dec()
        self._counts["requests"].labels(finish.split(",", 1)[0] or "cancelled").inc()
        if worker_fault:
            self._counts["worker_failures"].inc()

    def used_limit(self, finish: str, share: float) -> None:
        """Counts the end of a choice with tokens; `share` is their share of its maximum."""
        self._shares.labels(finish).observe(share)

    def first_token(self, seconds: float, prompt: int, cached: int) -> None:
        """Records a request's first token, `seconds` after its arrival."""
        self._times["time_to_first_token_seconds"].observe(seconds)
        self._prompts.observe(prompt)
        self._cached.value += cached

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

    def connection_closed(self, reason: str) -> None:
        self._counts["closed_connections"].labels(reason).inc()

    def placed(self, prefill_at: PrefillAt) -> None:
        self._counts["placements"].labels(prefill_at).inc()

    def late_item(self) -> None:
        self._counts["late_items"].inc()

    def redispatched(self, reason: str) -> None:
        self._counts["redispatches"].labels(reason).inc()

    def migrated(self, reason: MigrationReason) -> None:
        self._counts["migrations"].labels(reason).inc()

    def bad_frame(self, worker: str) -> None:
        self._counts["bad_frames"].labels(worker).inc()

    def unknown_kind(self, worker: str) -> None:
        self._counts["unknown_frames"].labels(worker).inc()

    def foreign(self, worker: str) -> None:
        self._counts["foreign_workers"].labels(worker).inc()

    def token_refused(self, by: str) -> None:
        """Counts a refused token: by a worker, of this gateway; or by this gateway, of a caller at its control port."""
        self._counts["refused_tokens"].labels(by).inc()

    def handed_over(self, report: HandoffReport) -> None:
        self._times["handoff_seconds"].observe(report.seconds)
        self._times["handoff_boundary_seconds"].observe(report.boundary)
