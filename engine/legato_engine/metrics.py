"""A worker's metrics for Prometheus, with the prefix `legato_worker_`. The core's counts survive its restarts."""

from collections import Counter as Counts
from itertools import accumulate
from operator import add

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from legato_engine.core.frames import DECODE_BATCHES, FETCH_FAILURES, CoreStatus, CoreTotals
from legato_engine.gpus import families as gpus
from legato_engine.gpus.watch import GpuSource, NoGpus
from legato_protocol.wire.load import Load

REFUSALS = (
    "malformed",
    "oversized",
    "version",
    "text",
    "greeting",
    "invalid",
    "unauthorized",
    "slow",
    "unknown_kind",
    "late",
    "body",
    "connections",
    "late_handshake",
    "bad_handshake",
)

_GAUGES = {
    "queue_tokens": "Prompt tokens waiting that no cache covers.",
    "waiting": "Sequences without blocks.",
    "running": "Sequences that run.",
    "free_blocks": "KV blocks that hold nothing.",
    "cached_blocks": "KV blocks that are findable and not used.",
    "used_blocks": "KV blocks of sequences.",
    "quarantined_blocks": "KV blocks that an unreachable peer might still write to.",
    "parked": "Prefills that are computed and wait for a receiver's blocks.",
    "granted_blocks": "KV blocks of hand-offs that are not committed yet; part of the used ones.",
    "pending_blocks": "KV blocks that waiting sequences ask for.",
    "growth_blocks": "KV blocks that sequences are expected to need at one time beyond those they have or ask for.",
}
_COUNTERS = {
    "steps": "Steps computed.",
    "prompt_tokens": "Prompt tokens computed.",
    "output_tokens": "Tokens made.",
    "received_handoffs": "Sequences taken over.",
    "sent_handoffs": "Sequences handed over.",
    "failed_handoffs": "Hand-offs that failed, either side.",
    "kv_fetches": "Fetches of cached KV blocks from other workers that returned any.",
    "kv_fetched_blocks": "KV blocks fetched from other workers.",
    "kv_fetched_bytes": "Bytes of KV blocks fetched from other workers.",
    "kv_fetch_seconds": "Duration of successful fetches of cached KV blocks.",
    "preemptions": "Sequences whose blocks were taken for others, and that are computed again.",
    "shared_prompt_tokens": "Prompt tokens in KV blocks that another sequence was using when the sequence began.",
}
_SECONDS = {"slice_wait": "Time that steps waited for a time slice of shared cores."}
_TIERS = {
    "slots": ("slots", "Capacity of a KV tier, in blocks."),
    "blocks": ("blocks", "Blocks in a KV tier."),
}
_TIER_COUNTS = {
    "saved": ("saved_blocks", "Blocks copied to a KV tier."),
    "restored": ("restored_blocks", "Blocks copied back from a KV tier."),
    "evicted": ("evicted_blocks", "Blocks evicted from a KV tier."),
    "save_seconds": ("save_seconds", "Time spent copying blocks to a KV tier."),
    "restore_seconds": ("restore_seconds", "Time spent copying blocks back from a KV tier."),
    "errors": ("errors", "Failed reads and writes of a KV tier, and rejected files."),
}
_DRAFTS = {
    "drafted": ("proposed_tokens", "Tokens that were drafted and verified."),
    "accepted": ("accepted_tokens", "Drafted tokens that the model sampled, too."),
    "drafting": ("drafting_seconds", "Time spent in the draft model."),
}


class WorkerMetrics:
    """The metrics of one worker, in a registry of its own."""

    def __init__(self, gpus: GpuSource | None = None, speculation: str = "None") -> None:
        """`speculation` is the method that drafts tokens."""
        self._gpus = gpus or NoGpus()
        self.registry = CollectorRegistry()
        self._speculation = speculation
        self._refused = Counter(
            "legato_worker_refused_frames", "Frames and connections refused.", ["reason"], registry=self.registry
        )
        for reason in REFUSALS:
            self._refused.labels(reason)
        self._starts = 0
        self._earlier: dict[str, float] = dict.fromkeys((*_COUNTERS, *_SECONDS, *_DRAFTS, "decode_rows"), 0)
        self._earlier_failed_fetches = Counts[str]()
        self._earlier_batches = CoreTotals().decode_batches
        self._current: CoreStatus | None = None
        self.gateways = 0
        self.ready = False
        self.abandoned = 0
        self.tls_invalid = False
        self.kernel_fallback = False
        self.transport_fallback = False
        self.registry.register(_Core(self))

    def count_refusal(self, reason: str) -> None:
        """Counts a refused frame or connection; `reason` is one of REFUSALS."""
        assert reason in REFUSALS
        self._refused.labels(reason).inc()

    def on_core_started(self, gpus: tuple[str, ...] = ()) -> None:
        """A core serves, on these GPUs."""
        self._starts += 1
        self._gpus.follow(gpus)

    def on_core_ended(self, last: CoreStatus | None) -> None:
        """Keeps the counts of a core that has ended."""
        if last is not None:
            for name in self._earlier:
                self._earlier[name] += getattr(last.totals, name)
            self._earlier_batches = self._batches(last.totals)
            self._earlier_failed_fetches.update(last.totals.failed_kv_fetches)

    def exposition(
        self,
        status: CoreStatus | None,
        *,
        ready: bool,
        gateways: int,
        abandoned: int = 0,
        tls_invalid: bool = False,
        kernel_fallback: bool = False,
        transport_fallback: bool = False,
    ) -> bytes:
        """The metrics in Prometheus' text format; for `abandoned` see `server.transfer_port`."""
        self._current, self.ready, self.gateways, self.abandoned = status, ready, gateways, abandoned
        self.tls_invalid, self.kernel_fallback = tls_invalid, kernel_fallback
        self.transport_fallback = transport_fallback
        return generate_latest(self.registry)

    def families(self) -> list[Metric]:
        """All metrics, with the core's counts in its last report."""
        totals = self._current.totals if self._current else CoreTotals()
        gauges: dict[str, tuple[str, float]] = {
            "ready": ("1 when this worker serves.", self.ready),
            "gateways": ("Gateways connected.", self.gateways),
            "transfer_abandoned_connections": (
                "Connections to the transfer port that strangers opened and closed, and that UCX still keeps.",
                self.abandoned,
            ),
            "internal_tls_invalid": (
                "1 while files of internal TLS cannot be used, if only in hand-offs, and the earlier ones are.",
                self.tls_invalid,
            ),
            "kernel_fallback": (
                "1 while slower operators replace kernels, or have no kernel for a format of weights.",
                self.kernel_fallback,
            ),
            "transport_fallback": (
                "1 while hand-offs should use RDMA, GPU memory or the memory of this node directly, but cannot.",
                self.transport_fallback,
            ),
        }
        counters: dict[str, tuple[str, float]] = {
            "core_restarts": ("Compute processes that were replaced.", max(0, self._starts - 1))
        }
        for name, text in _COUNTERS.items():
            counters[name] = (text, self._earlier[name] + getattr(totals, name))
        for name, text in _SECONDS.items():
            counters[f"{name}_seconds"] = (text, self._earlier[name] + getattr(totals, name))
        if self._current is not None:
            gauges.update(_load_gauges(self._current))
        families: list[Metric] = [_gauge(name, *value) for name, value in gauges.items()]
        families += [_counter(name, *value) for name, value in counters.items()]
        families += [
            *_tiers(totals),
            *self._drafts(totals),
            self._decode_batches(totals),
            self._transfer(totals),
            self._tenants(totals),
            self._failed_fetches(totals),
        ]
        return [*families, *gpus.families(self._gpus.readings)]

    def _drafts(self, totals: CoreTotals) -> list[Metric]:
        """Counts of drafted tokens by method; none without speculation."""
        families = list[Metric]()
        for name, (metric, text) in _DRAFTS.items() if self._speculation != "None" else ():
            family = CounterMetricFamily(f"legato_worker_speculation_{metric}", text, labels=["method"])
            family.add_metric([self._speculation], self._earlier[name] + getattr(totals, name))
            families.append(family)
        return families

    def _batches(self, totals: CoreTotals) -> tuple[int, ...]:
        """Number of steps by bucket of decoded rows, over all restarts."""
        return tuple(map(add, self._earlier_batches, totals.decode_batches))

    def _decode_batches(self, totals: CoreTotals) -> Metric:
        steps = accumulate(self._batches(totals))
        bounds = (*map(str, map(float, DECODE_BATCHES)), "+Inf")
        family = HistogramMetricFamily("legato_worker_decode_batch_sequences", "Sequences that a step decodes.")
        buckets = list(zip(bounds, map(float, steps), strict=True))
        family.add_metric([], buckets, float(self._earlier["decode_rows"] + totals.decode_rows))
        return family

    def _transfer(self, totals: CoreTotals) -> Metric:
        family = GaugeMetricFamily("legato_worker_transfer", "What the hand-off counts.", labels=["what"])
        for what, value in sorted(totals.transfer.items()):
            family.add_metric([what], value)
        return family

    def _failed_fetches(self, totals: CoreTotals) -> Metric:
        text = "Fetches of cached KV blocks that returned none, so that the prompt was computed."
        family = CounterMetricFamily("legato_worker_failed_kv_fetches", text, labels=["reason"])
        for reason in FETCH_FAILURES:
            failed = self._earlier_failed_fetches[reason] + totals.failed_kv_fetches.get(reason, 0)
            family.add_metric([reason], failed)
        return family

    def _tenants(self, totals: CoreTotals) -> Metric:
        family = CounterMetricFamily(
            "legato_worker_tenant_tokens", "Tokens computed, of the tenants served last.", labels=["tenant"]
        )
        for tenant, value in sorted(totals.tokens_by_tenant.items()):
            family.add_metric([tenant], value)
        return family


class _Core(Collector):
    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics.families()


def _load_gauges(status: CoreStatus) -> dict[str, tuple[str, float]]:
    """Returns help and value of the gauges that follow from the core's last report, by name."""
    load = status.load
    gauges = {name: (text, getattr(load, name)) for name, text in _GAUGES.items()}
    rate = "Prompt tokens in a second of full steps, fitted to steps of all sizes."
    gauges["prefill_tokens_per_second"] = (rate, load.prefill_rate)
    gauges["step_time_seconds"] = (
        "Duration of a step that decodes for each token that a sequence got, smoothed.",
        load.step_time,
    )
    gauges["kv_cache_usage_ratio"] = ("Share of the KV blocks that cannot be had for others now.", _usage(load))
    shares = "1 while workers have more threads than there are cores, so that steps take time slices."
    gauges["shares_cores"] = (shares, status.shares_cores)
    gauges["draining"] = ("1 when it takes nothing new.", load.draining)
    leaked = load.used_blocks if status.idle else 0
    mismatch = (
        "1 if the owners of KV blocks disagreed when it was idle last: a fault.",
        status.mismatch != "",
    )
    gauges["kv_mismatch"] = mismatch
    used = "Share of the slots in used KV blocks that hold a token's KV; 1 if none is used."
    gauges["kv_utilization"] = (used, status.kv_utilization)
    gauges["leaked_blocks"] = ("KV blocks in use although there is no sequence: a fault, and lost.", leaked)
    return gauges


def _tiers(totals: CoreTotals) -> list[Metric]:
    """Counts of the running core, by KV tier; empty without tiers."""
    families = list[Metric]()
    for kind, of_kind in ((GaugeMetricFamily, _TIERS), (CounterMetricFamily, _TIER_COUNTS)):
        for name, (metric, text) in of_kind.items() if totals.tiers else ():
            family = kind(f"legato_worker_kv_tier_{metric}", text, labels=["tier"])
            for tier, values in totals.tiers.items():
                family.add_metric([tier], getattr(values, name))
            families.append(family)
    return families


def _usage(load: Load) -> float:
    """The share of blocks that are used or quarantined; cached ones can be evicted immediately."""
    taken, free = load.used_blocks + load.quarantined_blocks, load.free_blocks + load.cached_blocks
    return taken / (taken + free) if taken else 0.0


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"legato_worker_{name}", text, value=float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"legato_worker_{name}", text, value=float(value))
