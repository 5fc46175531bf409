"""How many workers the sequences need that will decode when a worker started now would serve.

Decode's other terms count what is there. After a step of the load that fits into the present workers until these have
filled up, and a worker wished only then is late by that. Arrivals tell it at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from legato_operator.api.resources import Spec
from legato_operator.autoscaler.decision import COMING_SEQUENCES, Term
from legato_operator.autoscaler.demand_window import WINDOW
from legato_operator.autoscaler.prefill import requests_per_second, start_seconds
from legato_operator.autoscaler.signals import Blocks, DecodeCost, PromptLengths, Signals, Traffic, WorkerSignals

FULL = 0.9  # of a worker's blocks and slots: sequences do not divide evenly among workers
WITHIN = 0.9  # of the objective for a step
CHANCE = 1.5  # standard deviations that the number of requests of some seconds may be off, if they come independently
STEP = 4.0  # standard deviations above what the minute before lets expect: chance is hardly so large
STEP_CHANCE = 0.5  # standard deviations that the number of such a step may be off

COMING_EQUATION = "min(arriving * output * step, sequences + arriving * start) / rows"


@dataclass(frozen=True)
class _FullWorker:
    """Of one worker with as many sequences of the usual lengths as it may have."""

    rows: float
    step: float  # seconds


def terms(
    signals: Signals, workers: Sequence[WorkerSignals], spec: Spec, prompts: Sequence[Term], sequences: float
) -> tuple[Term, ...]:
    """By Little's law, but no more than can have arrived until then. `prompts` are the terms of the prefill pool, and
    `sequences` those that decode or will already. Nothing while lengths or costs are not known: other terms tell."""
    traffic = signals.traffic
    if traffic is None or traffic.output is None:
        return ()
    arriving = min(_arriving(traffic), _let_through(signals, traffic, spec, prompts))
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
    return (Term.of(COMING_SEQUENCES, COMING_EQUATION, numbers),)


def _arriving(traffic: Traffic) -> float:
    """Requests per second, as far as they are not chance. A step is known by the newest seconds first."""
    lately = _sure(_count(traffic.recent), CHANCE) / traffic.recent_seconds
    if not traffic.newest_seconds:
        return lately
    newest = _count(traffic.newest)
    return max(lately, _sure(newest, STEP_CHANCE if _is_step(newest, traffic) else CHANCE) / traffic.newest_seconds)


def _is_step(newest: int, traffic: Traffic) -> bool:
    """Whether so many cannot be chance. Only a whole window tells what is usual, without its last seconds."""
    if traffic.seconds < WINDOW or traffic.seconds <= traffic.recent_seconds:
        return False
    before = max(0, _count(traffic.arrivals) - _count(traffic.recent))
    usual = before * traffic.newest_seconds / (traffic.seconds - traffic.recent_seconds)
    return newest > usual + STEP * math.sqrt(max(1.0, usual))


def _count(arrived: Sequence[PromptLengths]) -> int:
    return sum(bucket.requests for bucket in arrived)


def _sure(requests: int, deviations: float) -> float:
    return requests - deviations * math.sqrt(requests)


def _mean(arrived: Sequence[PromptLengths]) -> float:
    """Uncached tokens of a prompt. Cached ones are not told: then a worker has room for fewer sequences than this
    gives, and the blocks in use tell that."""
    return sum(bucket.tokens for bucket in arrived) / max(1, _count(arrived))


def _let_through(signals: Signals, traffic: Traffic, spec: Spec, prompts: Sequence[Term]) -> float:
    """Requests per second that prefill computes with the workers that it has or wishes. Without any that has measured
    what prompts cost, others prefill, and nobody knows of a limit."""
    prefill = signals.of_pool("prefill")
    each = requests_per_second(traffic, prefill, spec.slo.ttft)
    wished = min(math.ceil(max((term.known for term in prompts), default=0.0)), spec.scaling.prefill.max)
    return each * max(wished, sum(worker.ready for worker in prefill)) if each else math.inf


def _full_worker(workers: Sequence[WorkerSignals], spec: Spec, prompt: float, output: float) -> _FullWorker | None:
    """The median of those that the workers' costs and capacities give."""
    found = [
        _filled(worker.decode_cost, worker.blocks, worker.slots, spec, prompt, output)
        for worker in workers
        if worker.decode_cost is not None and worker.blocks is not None
        if worker.blocks.total > worker.blocks.quarantined
    ]
    if not found:
        return None
    found.sort(key=lambda full: full.rows / full.step)
    return found[len(found) // 2]


def _filled(
    cost: DecodeCost, blocks: Blocks, slots: int | None, spec: Spec, prompt: float, output: float
) -> _FullWorker:
    """As full as blocks, slots and the objective let it be. An objective below an empty step limits nothing: no number
    of workers meets it."""
    row = cost.per_row + cost.per_context * (prompt + output / 2)
    limits = [FULL * (blocks.total - blocks.quarantined) * blocks.size / (prompt + output)]
    if slots:
        limits.append(FULL * slots)
    if row > 0 and cost.fixed < WITHIN * spec.slo.tpot:
        limits.append((WITHIN * spec.slo.tpot - cost.fixed) / row)
    rows = max(1.0, min(limits))
    return _FullWorker(rows, cost.fixed + row * rows)
