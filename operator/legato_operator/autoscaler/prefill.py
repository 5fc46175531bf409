"""How many workers prompts need: those that arrive, and those that will be left over when another worker serves.

Offered load comes first. Below saturation a queue is empty at any load, so a queue alone would let a worker go and
then take it back. All is counted in seconds of work: one second of work in a second is one worker at full load.
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

UTILISATION = 0.75  # of a worker's measured rate: with a rate that is 30 % too high, load is still below capacity
LATE = 0.05  # of the prompts may wait longer than that
DEVIATIONS = 0.5  # standard deviations that what arrives in the last seconds may be off by chance
LEAST_QUEUEING = 0.1  # of the objective: the part that is left for queueing is never taken to be less
USUAL_START = 60.0  # seconds, where no start was measured
_LONGEST_PROMPT = 1 << 24  # tokens

LOAD_EQUATION = "max(fittingWork / minute, (fittingWork - chance) / window)"
ARRIVALS_EQUATION = (
    f"max(min(1, oversizedWork / minute), {LOAD_EQUATION} / utilisation + max(0, oversizedWork / minute - 1))"
)
LATE_EQUATION = "(load / workers) ** (sqrt(2 * (workers + 1)) - 1) * exp(-queueing * (workers - load) / residual)"
BACKLOG_EQUATION = (
    "arrivals + max(0, max(0, backlogWork + load * start - capacity) - queueing * arrivals) / max(start, queueing)"
)

_Cost = Callable[[float], float]  # seconds of a prompt with so many uncached tokens


@dataclass(frozen=True)
class _Work:
    """Prompts, apart by whether one alone exceeds the objective."""

    fitting: float = 0.0  # seconds
    oversized: float = 0.0  # seconds
    oversized_tokens: int = 0
    squared: float = 0.0  # seconds², summed over those that fit
    longest: float = 0.0  # seconds that the longest of those that fit takes at least

    @property
    def chance(self) -> float:
        """Seconds by which those that fit differ from the usual: a standard deviation, if they come independently."""
        return math.sqrt(self.squared)


def terms(signals: Signals, workers: Sequence[WorkerSignals], ttft: float, current: int) -> tuple[Term, ...]:
    """What workers of this pool, of which `current` are desired, are needed for. `ttft` is the objective in seconds.

    Where none of them has been measured, decode workers are, which prefill while this pool is empty, and all prompts
    that are short. Prompts that decode workers help with are this pool's work, too: it grows as if they did not.
    """
    traffic = signals.traffic
    if traffic is None:
        return (Term.unknown(ARRIVALS, "what arrives (a gateway did not answer)"),)
    helping = [worker for worker in signals.of_pool("decode") if worker not in workers]
    for_decode = decode_share(signals, workers, ttft)
    queued = _queued_at((*workers, *helping)) + round(traffic.held_tokens * (1 - for_decode))
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
    """What a worker takes from its creation until it serves, as measured."""
    known = [worker.start_seconds for worker in workers if worker.start_seconds is not None]
    return statistics.median(known) if known else USUAL_START


def requests_per_second(traffic: Traffic, workers: Sequence[WorkerSignals], ttft: float) -> float:
    """Of what arrived in the last seconds, that one prefill worker computes; 0 where nothing did, or nothing is
    known."""
    cost = _cost(workers)
    work = _work(traffic.recent, cost, ttft) if cost is not None else _Work()
    seconds = work.fitting + work.oversized
    return sum(bucket.requests for bucket in traffic.recent) / seconds if seconds else 0.0


def prefilling(signals: Signals, spec: Spec) -> tuple[WorkerSignals, ...]:
    """Workers of the pool that scales by prompts."""
    return signals.of_pool("prefill" if spec.disaggregated else "decode")


def decode_share(signals: Signals, workers: Sequence[WorkerSignals], ttft: float) -> float:
    """The share of the queue, from 0 to 1, that waits for room in decode workers, not for these workers, which prefill.

    It follows from what the head of the queue waited for. But while more prompts arrive than these workers compute,
    recent prompts wait for prefill: decode workers are then full of prompts that are not computed yet.
    """
    traffic = signals.traffic
    total = sum(traffic.head_wait.values()) if traffic is not None else 0.0
    if traffic is None or total <= 0:
        return 0.0
    share = traffic.head_wait.get("decode_room", 0.0) / total
    if not traffic.held_tokens or not _is_short(signals, traffic, workers, ttft):
        return share
    arrived = sum(bucket.tokens for bucket in traffic.recent)
    return min(share, max(0.0, 1 - arrived / traffic.held_tokens))


def _is_short(signals: Signals, traffic: Traffic, workers: Sequence[WorkerSignals], ttft: float) -> bool:
    """True if more prompts arrive than the workers that serve, or one where none does, can compute."""
    cost = _measured_cost(signals, workers)
    serving = max(1, sum(worker.ready for worker in workers))
    return cost is not None and _recent_load(traffic, cost, ttft) > serving


def _lately(recent: _Work, seconds: float) -> float:
    """Workers that what arrived lately keeps busy, as far as it is not chance. A minute's mean rises slowly."""
    return max(0.0, recent.fitting - DEVIATIONS * recent.chance) / seconds


def _recent_load(traffic: Traffic, cost: _Cost, ttft: float) -> float:
    """Of the last seconds. A step is known by the newest of them first, as far as these are not chance."""
    newest, recent = _work(traffic.newest, cost, ttft), _work(traffic.recent, cost, ttft)
    sure = (newest.fitting - newest.chance) / traffic.newest_seconds if traffic.newest_seconds else 0.0
    return max(recent.fitting / traffic.recent_seconds, sure)


def _arrivals(arrived: _Work, traffic: Traffic) -> Term:
    """Oversized prompts need what works them off, but for one worker's worth: no number of workers serves one of them
    within the objective, and one alone must not add any. Nor may one or two of the first seconds after a restart: only
    a whole window tells what lasts."""
    numbers = {
        "fittingWork": arrived.fitting,
        "chance": arrived.chance,
        "oversizedWork": arrived.oversized,
        "window": traffic.seconds,
        "minute": max(traffic.seconds, WINDOW),
        "utilisation": UTILISATION,
        "tokens": float(sum(bucket.tokens for bucket in traffic.arrivals)),
        "oversizedTokens": float(arrived.oversized_tokens),
    }
    return Term.of(ARRIVALS, ARRIVALS_EQUATION, numbers)


def _queueing(arrived: _Work, load: float, queueing: float) -> tuple[Term, ...]:
    """The smallest pool in which at most `LATE` of the prompts wait longer than the objective leaves for queueing.

    Few workers meet by chance what many share out, so they need more room. Sakasegawa's approximation of the M/G/c
    queue for the part that waits at all, and an exponential wait of these with its mean.
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
    """What is left over when a worker started now would serve, done in as long as that takes.

    Nothing while ready workers do what waits within the objective's part for queueing: so little is noise.
    """
    if numbers["backlogWork"] <= numbers["queueing"] * numbers["ready"]:
        return ()
    return (Term.of(BACKLOG, BACKLOG_EQUATION, numbers),)


def _queued_at(workers: Iterable[WorkerSignals]) -> int:
    return sum(max(0, (worker.queue_tokens or 0) - (worker.parked_tokens or 0)) for worker in workers)


def _fitting_tokens(traffic: Traffic, queued: int, elsewhere: int, oversized: int, for_decode: float) -> int:
    """Of the tokens that wait here, those of prompts that do not exceed the objective alone.

    Gateways know of a prompt that waits neither how far it is nor where: what is queued beyond the others is left of
    the `oversized` ones, and it is first that of workers `elsewhere`. Those that drain have had theirs for the longest.
    """
    others = sum(bucket.tokens for bucket in traffic.waiting) - oversized
    left = min(oversized, max(0, queued + elsewhere - round(others * (1 - for_decode))))
    return max(0, queued - max(0, left - elsewhere))


def _unknown_queues(workers: Sequence[WorkerSignals]) -> tuple[Term, ...]:
    silent = [worker.name for worker in workers if worker.ready and worker.queue_tokens is None]
    return (Term.unknown(BACKLOG, f"the queue of {', '.join(silent)}"),) if silent else ()


def _capacity(workers: Sequence[WorkerSignals], start: float) -> float:
    """Seconds of work that can be done until a worker started now would serve."""
    return sum(start if worker.ready else min(start, worker.age) for worker in workers)


def _measured_cost(signals: Signals, workers: Sequence[WorkerSignals]) -> _Cost | None:
    """The cost on these workers, or on decode workers where none of these has been measured."""
    return _cost(workers) or _cost(signals.of_pool("decode"))


def _cost(workers: Sequence[WorkerSignals]) -> _Cost | None:
    """The median of all workers' costs: one whose fit is off does not move it."""
    costs = [worker.prefill_cost for worker in workers if worker.prefill_cost is not None]
    if not costs:
        return None
    return lambda tokens: statistics.median(cost.seconds(tokens) for cost in costs)


def _work(buckets: Iterable[PromptLengths], cost: _Cost, ttft: float) -> _Work:
    """A bucket is oversized when the shortest prompt that belongs into it is: so it does not depend on the load."""
    work = _Work()
    for bucket in buckets:
        if bucket.requests:
            work = _with(work, bucket, cost, cost(bucket.least), ttft)
    return work


def _with(work: _Work, bucket: PromptLengths, cost: _Cost, least: float, ttft: float) -> _Work:
    seconds = bucket.requests * cost(bucket.tokens / bucket.requests)
    if least > ttft:
        oversized, tokens = work.oversized + seconds, work.oversized_tokens + bucket.tokens
        return dataclasses.replace(work, oversized=oversized, oversized_tokens=tokens)
    squared = work.squared + seconds * seconds / bucket.requests
    return dataclasses.replace(work, fitting=work.fitting + seconds, squared=squared, longest=max(work.longest, least))


def _per_token(cost: _Cost, ttft: float) -> float:
    """Seconds a token, of a prompt half as long as the objective allows: what waits is known in tokens alone."""
    shortest, longest = 1, _LONGEST_PROMPT
    while shortest < longest:
        middle = (shortest + longest + 1) // 2
        if cost(middle) <= ttft:
            shortest = middle
        else:
            longest = middle - 1
    return cost(max(1, shortest // 2)) / max(1, shortest // 2)
