"""Predicts the share of requests queued in gateways that will decode concurrently.

The prediction is needed before these requests are prefilled: decode workers requested only then would start too late.
"""

import math
import statistics
from collections.abc import Sequence

from legato_operator.api.resources import Spec
from legato_operator.autoscaler.decision import BACKLOG, Term
from legato_operator.autoscaler.prefill import decode_share, prefilling, requests_per_second, start_seconds
from legato_operator.autoscaler.signals import Signals, Traffic, WorkerSignals

AHEAD = 2.0  # seconds for which a request occupies a decode worker before it decodes, while its prompt is queued


def queued_share(signals: Signals, workers: Sequence[WorkerSignals], spec: Spec, prompts: Sequence[Term]) -> float:
    """Returns a fraction of the queued requests, above 1 if many more will arrive before a worker started now serves.

    `prompts` are the terms of the prefill pool, empty without one.
    """
    traffic = signals.traffic
    if traffic is None or not traffic.queued:
        return 0.0
    start = start_seconds(workers)
    waiting = decode_share(signals, prefilling(signals, spec), spec.slo.ttft)
    lasting = max(waiting, _decoding_share(traffic, spec.slo.tpot, start))
    arriving = sum(bucket.requests for bucket in traffic.recent) / traffic.recent_seconds
    coming = min(_sent(signals, workers, spec, prompts), traffic.queued + arriving * start)
    return max(lasting, coming / traffic.queued)


def _decoding_share(traffic: Traffic, tpot: float, start: float) -> float:
    """Returns the fraction of the queue that decodes concurrently if the whole queue is prefilled while a worker
    starts."""
    decoding = traffic.output.mean * tpot if traffic.output is not None else 0.0
    return decoding / start if decoding < start else 1.0


def _sent(signals: Signals, workers: Sequence[WorkerSignals], spec: Spec, prompts: Sequence[Term]) -> float:
    """Returns the sequences that additional prefill workers for a backlog will keep decoding, by Little's law.

    Sequences of serving prefill workers have already arrived.
    """
    backlog = next((term.known for term in prompts if term.reason == BACKLOG), 0.0)
    prefill = signals.of_pool("prefill")
    added = min(math.ceil(backlog), spec.scaling.prefill.max) - sum(worker.ready for worker in prefill)
    traffic = signals.traffic
    if added <= 0 or traffic is None or traffic.output is None:
        return 0.0
    seconds = AHEAD + traffic.output.mean * _step_seconds(workers, spec)
    return added * requests_per_second(traffic, prefill, spec.slo.ttft) * seconds


def _step_seconds(workers: Sequence[WorkerSignals], spec: Spec) -> float:
    """Returns the step time of a full worker, at most the objective."""
    tpot = spec.slo.tpot
    known = [
        min(tpot, worker.decode_cost.seconds(worker.slots or 0, worker.blocks.total * worker.blocks.size))
        for worker in workers
        if worker.decode_cost is not None and worker.blocks is not None
    ]
    return statistics.median(known) if known else tpot
