"""Every metric that some process of Legato emits, by its name in PromQL."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import Metric

from legato_engine.core.frames import CoreStatus, CoreTotals
from legato_engine.gpus.interface import GpuReading
from legato_engine.gpus.watch import NoGpus
from legato_engine.kvcache.tier_counts import TierCounts
from legato_engine.metrics import WorkerMetrics
from legato_gateway.metrics.gateway_metrics import Metrics
from legato_operator.metrics.operator_metrics import OperatorMetrics
from legato_protocol.wire.load import Load

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def worker() -> WorkerMetrics:
    """A worker's metrics after its core spoke."""
    gpus = NoGpus()
    gpus.readings = (GpuReading("GPU-0", 1, 2, 0.5, 300.0, 700.0, 60.0, {"corrected": 1}, frozenset(), {79: 1}),)
    metrics = WorkerMetrics(gpus, "PromptLookup")
    load = Load(1, 2, 3, 40, 5, 6, 7, 1000.0, 0.01)
    totals = CoreTotals(
        steps=1, prompt_tokens=2, tokens_by_tenant={"a": 8}, transfer={"sending": 1}, tiers={"host": TierCounts()}
    )
    metrics.exposition(CoreStatus(load, totals, False), ready=True, gateways=1)
    return metrics


def registries() -> dict[str, Any]:
    return {"gateway": Metrics().registry, "worker": worker().registry, "operator": OperatorMetrics().registry}


def families() -> Iterator[Metric]:
    for registry in registries().values():
        yield from registry.collect()


def names() -> set[str]:
    return {family.name + suffix for family in families() for suffix in SUFFIXES[family.type]}
