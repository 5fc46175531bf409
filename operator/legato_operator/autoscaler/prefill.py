"""Terms of prompts: those that arrive, and those that will still wait when another worker serves.

The offered load comes first: below saturation a queue is empty at any load, so scaling only by the queue would remove
workers and start them again. The unit is seconds of work: one second of work per second is one fully loaded worker.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from legato_operator.api.resources import Spec
from legato_operator.autoscaler.decision import ARRIVALS, BACKLOG, QUEUEING, Term
from legato_operator.autoscaler.demand_window import WINDOW
from legato_operator.autoscaler.equation import evaluate
from legato_operator.autoscaler.signals import PromptLengths, Signals, Traffic, WorkerSignals

UTILISATION = 0.75  # of a worker's measured rate: leaves room for a measurement that is 30 % too high
LATE = 0.05  # fraction of the prompts that may wait longer than the objective leaves for queueing
DEVIATIONS = 0.5  # standard deviations subtracted as chance from the work of the last seconds
LEAST_QUEUEING = 0.1  # minimum fraction of the objective that is left for queueing
USUAL_START = 60.0  # seconds, if no start was measured
_LONGEST_PROMPT = 1 << 24  # tokens

LOAD_EQUATION = "fittingWork / minute"
ARRIVALS_EQUATION = (
    f"max(min(1, oversizedWork / minute), {LOAD_EQUATION} / utilisation + (oversizedWork - onePrompt) / minute)"
)
LATE_EQUATION = "(load / workers) ** (sqrt(2 * (workers + 1)) - 1) * exp(-queueing * (workers - load) / residual)"
BACKLOG_EQUATION = (
    "arrivals + max(0, max(0, backlogWork + load * start - capacity) - queueing * arrivals) / max(start, queueing)"
)

_Cost = Callable[[float], float]  # seconds of a prompt, by its uncached tokens


@dataclass(frozen=True)
class _Work:
    """Work of prompts that fit into the objective, and of oversized ones, each of which exceeds it."""

    fitting: float = 0.0  # seconds
    oversized: float = 0.0  # seconds
    oversized_tokens: int = 0
    largest: float = 0.0  # seconds of the largest oversized prompt, about
    squared: float = 0.0  # seconds², summed over fitting prompts
    longest: float = 0.0  # seconds of the longest fitting prompt, at least

    @property
    def chance(self) -> float:
        """Standard deviation of the fitting work in seconds, if prompts arrive independently."""
        return math.sqrt(self.squared)


def terms(signals: Signals, workers: Sequence[WorkerSignals], ttft: float, current: int) -> tuple[Term, ...]:
    """Returns the terms of a pool that prefills. `current` is its desired size, `ttft` the objective in seconds.

    Without a measurement in this pool, costs of decode workers are used, which prefill short prompts, and all prompts
    while this pool is empty. Prompts that decode workers help with count as this pool's work.
    """
    traffic = signals.traffic
    if traffic is None:
        return (Term.unknown(ARRIVALS, "the arrivals (a gateway did not answer)"),)
    helping = [worker for worker in signals.of_pool("decode") if worker not in workers]
    for_decode = decode_share(signals, workers, ttft)
    queued = _queued_at((*workers, *helping)) + round(traffic.queued_tokens * (1 - for_decode))
    if not queued and not any(bucket.tokens for bucket in traffic.arrivals):
        return (Term(ARRIVALS, 0.0, "0", {}), *_unknown_queues(workers))
    cost = _measured_cost(signals, workers)
    if cost is None and not current:
        return (Term(ARRIVALS, 0.0, "0", {}),)
    if cost is None:
        return (Term.unknown(ARRIVALS, "the prefill rate (no step was measured)"),)
    arrived = _work(traffic.arrivals, cost, ttft)
    arrivals = _arrivals(arrived, traffic)
    elsewhere = _queued_at([worker for worker in signals.workers if worker not in (*workers, *helping)])
    oversized = _work(traffic.waiting, cost, ttft).oversized_tokens
    backlog = _fitting_tokens(traffic, queued, elsewhere, oversized, for_decode)
    load = evaluate(LOAD_EQUATION, arrivals.numbers)
    numbers = {
        "arrivals": max(arrivals.known, _lately(_work(traffic.recent, cost, ttft), traffic.recent_seconds)),
        "backlogTokens": float(backlog),
        "backlogWork": backlog * _per_token(cost, ttft),
        "load": max(load, _recent_load(traffic, cost, ttft)),
        "start": start_seconds(workers),
        "capacity": _capacity(workers, start_seconds(workers)),
        "queueing": max(LEAST_QUEUEING * ttft, ttft - arrived.longest),
        "ready": float(sum(worker.ready for worker in workers)),
    }
    queueing = _queueing(arrived, load, numbers["queueing"])
    return (arrivals, *queueing, *_backlog(numbers), *_unknown_queues(workers))


def start_seconds(workers: Iterable[WorkerSignals]) -> float:
    """Returns the median measured seconds from a worker's creation until it serves."""
    known = [worker.start_seconds for worker in workers if worker.start_seconds is not None]
    return statistics.median(known) if known else USUAL_START


def requests_per_second(traffic: Traffic, workers: Sequence[WorkerSignals], ttft: float) -> float:
    """Returns the rate of recent requests that one prefill worker can compute; 0 without requests or costs."""
    cost = _cost(workers)
    work = _work(traffic.recent, cost, ttft) if cost is not None else _Work()
    seconds = work.fitting + work.oversized
    return sum(bucket.requests for bucket in traffic.recent) / seconds if seconds else 0.0


def prefilling(signals: Signals, spec: Spec) -> tuple[WorkerSignals, ...]:
    """Returns the workers of the pool that scales by prompts."""
    return signals.of_pool("prefill" if spec.disaggregated else "decode")


def decode_share(signals: Signals, workers: Sequence[WorkerSignals], ttft: float) -> float:
    """Returns the share of the queue, from 0 to 1, that waits for decode workers and not for these `workers`.

    It is derived from the causes of the queue head's wait. While more prompts arrive than these workers can compute,
    recent prompts count as waiting for prefill: decode workers are then full of prompts that are not computed yet.
    """
    traffic = signals.traffic
    total = sum(traffic.head_wait.values()) if traffic is not None else 0.0
    if traffic is None or total <= 0:
        return 0.0
    share = traffic.head_wait.get("decode_room", 0.0) / total
    if not traffic.queued_tokens or not _is_short(signals, traffic, workers, ttft):
        return share
    arrived = sum(bucket.tokens for bucket in traffic.recent)
    return min(share, max(0.0, 1 - arrived / traffic.queued_tokens))


def _is_short(signals: Signals, traffic: Traffic, workers: Sequence[WorkerSignals], ttft: float) -> bool:
    """True if more prompts arrive than the serving workers, or one if none serves, can compute."""
    cost = _measured_cost(signals, workers)
    serving = max(1, sum(worker.ready for worker in workers))
    return cost is not None and _recent_load(traffic, cost, ttft) > serving


def _lately(recent: _Work, seconds: float) -> float:
    """Returns the workers that recent arrivals keep busy, less an allowance for chance. A minute's mean is slower."""
    return max(0.0, recent.fitting - DEVIATIONS * recent.chance) / seconds


def _recent_load(traffic: Traffic, cost: _Cost, ttft: float) -> float:
    """Returns the load of the last seconds. The newest of them, less an allowance for chance, show a step first."""
    newest, recent = _work(traffic.newest, cost, ttft), _work(traffic.recent, cost, ttft)
    sure = (newest.fitting - newest.chance) / traffic.newest_seconds if traffic.newest_seconds else 0.0
    return max(recent.fitting / traffic.recent_seconds, sure)


def _arrivals(arrived: _Work, traffic: Traffic) -> Term:
    """Returns the term of arrivals.

    All oversized prompts but one count as load: more workers cannot serve such a prompt within the objective, so a
    single one must not add any. Until a window is full, a minute is the divisor, so that neither do one or two
    prompts right after a restart; `Backlog` notices more of them.
    """
    minute = max(traffic.seconds, WINDOW)  # seconds; a worker does at most as much work in it
    numbers = {
        "fittingWork": arrived.fitting,
        "oversizedWork": arrived.oversized,
        "onePrompt": min(arrived.largest, minute),
        "minute": minute,
        "utilisation": UTILISATION,
        "tokens": float(sum(bucket.tokens for bucket in traffic.arrivals)),
        "oversizedTokens": float(arrived.oversized_tokens),
    }
    return Term.from_equation(ARRIVALS, ARRIVALS_EQUATION, numbers)


def _queueing(arrived: _Work, load: float, queueing: float) -> tuple[Term, ...]:
    """Returns the smallest pool in which at most `LATE` of the prompts wait longer than the objective leaves room for.

    Small pools need more headroom for bursts than large ones. Uses Sakasegawa's approximation of the M/G/c queue for
    the fraction of prompts that wait, and an exponential distribution of their waits.
    """
    if not arrived.fitting:
        return ()
    numbers = {
        "load": load,
        "residual": arrived.squared / arrived.fitting / 2,
        "queueing": queueing,
        "late": LATE,
    }
    for workers in itertools.count(math.floor(numbers["load"]) + 1):
        numbers["workers"] = float(workers)
        if evaluate(LATE_EQUATION, numbers) <= LATE:
            break
    return (Term(QUEUEING, numbers["workers"], LATE_EQUATION, numbers),)


def _backlog(numbers: dict[str, float]) -> tuple[Term, ...]:
    """Returns the term of the work that is left when a worker started now serves, to be done within its start time.

    None while ready workers can do the waiting work within the objective's part for queueing: such a backlog is noise.
    """
    if numbers["backlogWork"] <= numbers["queueing"] * numbers["ready"]:
        return ()
    return (Term.from_equation(BACKLOG, BACKLOG_EQUATION, numbers),)


def _queued_at(workers: Iterable[WorkerSignals]) -> int:
    return sum(max(0, (worker.queue_tokens or 0) - (worker.parked_tokens or 0)) for worker in workers)


def _fitting_tokens(traffic: Traffic, queued: int, elsewhere: int, oversized: int, for_decode: float) -> int:
    """Returns the waiting tokens of prompts that fit into the objective.

    Gateways know neither the progress nor the place of a waiting prompt. Queued tokens beyond the fitting prompts count
    as the rest of the `oversized` ones, first on draining workers `elsewhere`, which have had theirs for longest.
    """
    others = sum(bucket.tokens for bucket in traffic.waiting) - oversized
    left = min(oversized, max(0, queued + elsewhere - round(others * (1 - for_decode))))
    return max(0, queued - max(0, left - elsewhere))


def _unknown_queues(workers: Sequence[WorkerSignals]) -> tuple[Term, ...]:
    silent = [worker.name for worker in workers if worker.ready and worker.queue_tokens is None]
    return (Term.unknown(BACKLOG, f"the queue of {', '.join(silent)}"),) if silent else ()


def _capacity(workers: Sequence[WorkerSignals], start: float) -> float:
    """Returns the seconds of work that the pool can do until a worker started now serves."""
    return sum(start if worker.ready else min(start, worker.age) for worker in workers)


def _measured_cost(signals: Signals, workers: Sequence[WorkerSignals]) -> _Cost | None:
    """Returns the cost on these workers or, without a measurement, on decode workers."""
    return _cost(workers) or _cost(signals.of_pool("decode"))


def _cost(workers: Sequence[WorkerSignals]) -> _Cost | None:
    """Returns the median of the workers' costs, which one bad fit does not move."""
    costs = [worker.prefill_cost for worker in workers if worker.prefill_cost is not None]
    if not costs:
        return None
    return lambda tokens: statistics.median(cost.seconds(tokens) for cost in costs)


def _work(buckets: Iterable[PromptLengths], cost: _Cost, ttft: float) -> _Work:
    """Returns the work of these prompts. A bucket is oversized if its shortest possible prompt is."""
    work = _Work()
    for bucket in buckets:
        if bucket.requests:
            work = _with(work, bucket, cost, cost(bucket.least), ttft)
    return work


def _with(work: _Work, bucket: PromptLengths, cost: _Cost, least: float, ttft: float) -> _Work:
    seconds = bucket.requests * cost(bucket.tokens / bucket.requests)
    if least > ttft:
        oversized, tokens = work.oversized + seconds, work.oversized_tokens + bucket.tokens
        largest = max(work.largest, seconds / bucket.requests)
        return dataclasses.replace(work, oversized=oversized, oversized_tokens=tokens, largest=largest)
    squared = work.squared + seconds * seconds / bucket.requests
    return dataclasses.replace(work, fitting=work.fitting + seconds, squared=squared, longest=max(work.longest, least))


def _per_token(cost: _Cost, ttft: float) -> float:
    """Returns the seconds per token of a prompt half as long as the objective allows: queues are known in tokens."""
    shortest, longest = 1, _LONGEST_PROMPT
    while shortest < longest:
        middle = (shortest + longest + 1) // 2
        if cost(middle) <= ttft:
            shortest = middle
        else:
            longest = middle - 1
    return cost(max(1, shortest // 2)) / max(1, shortest // 2)
