"""Predicts the workers needed by sequences that will decode when a worker started now would serve.

Decode's other terms count present sequences. After a step of the load, these fit into the present workers at first, and
a worker started only when they are full would be late. The arrival rate shows the step immediately.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from legato_operator.api.resources import Spec
from legato_operator.autoscaler.decision import COMING_SEQUENCES, Term
from legato_operator.autoscaler.prefill import requests_per_second, start_seconds
from legato_operator.autoscaler.signals import Blocks, DecodeCost, PromptLengths, Signals, Traffic, WorkerSignals
from legato_protocol.step_target import STEP_TARGET

FULL = 0.9  # of a worker's blocks and slots: sequences do not divide evenly among workers
CHANCE = 1.5  # standard deviations subtracted from a count of requests as chance, if they arrive independently

COMING_EQUATION = "min(arriving * output * step, sequences + arriving * start) / rows"


@dataclass(frozen=True)
class _FullWorker:
    """A worker with its maximum number of sequences of usual lengths."""

    rows: float
    step: float  # seconds


def terms(
    signals: Signals, workers: Sequence[WorkerSignals], spec: Spec, prompts: Sequence[Term], sequences: float
) -> tuple[Term, ...]:
    """Returns a term by Little's law, limited to the sequences that can have arrived by then; none without lengths and
    costs.

    `prompts` are the terms of the prefill pool. `sequences` is the number of sequences that decode or wait to.
    """
    traffic = signals.traffic
    if traffic is None or traffic.output is None:
        return ()
    arriving = min(_arriving(traffic), _prefill_rate(signals, traffic, spec, prompts))
    full = _full_worker(workers, spec, _mean(traffic.recent), traffic.output.mean)
    if arriving <= 0 or full is None:
        return ()
    numbers = {
        "arriving": arriving,
        "output": traffic.output.mean,
        "step": full.step,
        "sequences": sequences,
        "start": start_seconds(workers),
        "rows": full.rows,
    }
    return (Term.from_equation(COMING_SEQUENCES, COMING_EQUATION, numbers),)


def _arriving(traffic: Traffic) -> float:
    """Returns requests per second, less an allowance for chance. The newest seconds show a step first."""
    lately = _lower_bound(traffic.recent) / traffic.recent_seconds
    return max(lately, _lower_bound(traffic.newest) / traffic.newest_seconds) if traffic.newest_seconds else lately


def _count(arrived: Sequence[PromptLengths]) -> int:
    return sum(bucket.requests for bucket in arrived)


def _lower_bound(arrived: Sequence[PromptLengths]) -> float:
    """Returns the number of requests, less an allowance for chance."""
    return _count(arrived) - CHANCE * math.sqrt(_count(arrived))


def _mean(arrived: Sequence[PromptLengths]) -> float:
    """Returns the mean uncached tokens of a prompt. Cached tokens are not reported: a worker then has room for fewer
    sequences than predicted, which shows in its used blocks."""
    return sum(bucket.tokens for bucket in arrived) / max(1, _count(arrived))


def _prefill_rate(signals: Signals, traffic: Traffic, spec: Spec, prompts: Sequence[Term]) -> float:
    """Returns the requests per second that prefill computes with its current or desired workers; infinite while no
    worker has measured its prefill cost."""
    prefill = signals.of_pool("prefill")
    each = requests_per_second(traffic, prefill, spec.slo.ttft)
    desired = min(math.ceil(max((term.known for term in prompts), default=0.0)), spec.scaling.prefill.max)
    return each * max(desired, sum(worker.ready for worker in prefill)) if each else math.inf


def _full_worker(workers: Sequence[WorkerSignals], spec: Spec, prompt: float, output: float) -> _FullWorker | None:
    """Returns the median of the workers' full states, by their costs and capacities, or None."""
    full_workers = [
        _filled(worker.decode_cost, worker.blocks, worker.slots, spec, prompt, output)
        for worker in workers
        if worker.decode_cost is not None and worker.blocks is not None
        if worker.blocks.total > worker.blocks.quarantined
    ]
    if not full_workers:
        return None
    full_workers.sort(key=lambda full: full.rows / full.step)
    return full_workers[len(full_workers) // 2]


def _filled(
    cost: DecodeCost, blocks: Blocks, slots: int | None, spec: Spec, prompt: float, output: float
) -> _FullWorker:
    """Returns a worker as full as blocks, slots and the objective allow. An objective below the cost of an empty step
    limits nothing, because more workers cannot meet it."""
    row = cost.per_row + cost.per_context * (prompt + output / 2)
    limits = [FULL * (blocks.total - blocks.quarantined) * blocks.size / (prompt + output)]
    if slots:
        limits.append(FULL * slots)
    if row > 0 and cost.fixed < STEP_TARGET * spec.slo.tpot:
        limits.append((STEP_TARGET * spec.slo.tpot - cost.fixed) / row)
    rows = max(1.0, min(limits))
    return _FullWorker(rows, cost.fixed + row * rows)
