"""What a sequence would cost on a worker, in seconds or in terms that are added to seconds. Lower is better."""

from dataclasses import dataclass

from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_protocol.load import PrefillCoefficients

UNMEASURED_RATE = 1000.0  # tokens per second, of workers in a fleet where none has measured its rate yet
RESOLUTION = 0.01  # seconds: costs closer than this are equal, so that load and not noise breaks the tie

RUNNING_WEIGHT = 0.02  # each sequence of a batch makes every step of the others a little longer
TRANSFER_RATE = 50_000.0  # tokens per second that a hand-off carries: blocks held already need no sending


@dataclass(frozen=True, slots=True)
class Weights:
    """The manifest's `routing.weights`: what counts how much against a second of waiting in a queue.

    `prefix_cache`: a second of computing what no cache holds. Others wait for it too, so a prompt had better wait for a
    prefix than have it computed again, unless the queue there is long. `kv_cache_utilization`: an arena that is full;
    preemption costs about a prefill. `step_time`: output tokens, of an answer, whose steps count. `adapter`: an adapter
    that is not in memory; it has to be loaded, and perhaps another one pushed out.
    """

    prefix_cache: float = 2.0
    kv_cache_utilization: float = 1.0
    step_time: float = 20.0
    adapter: float = 0.5


@dataclass(frozen=True, slots=True)
class Objectives:
    """The manifest's `slo`: seconds to the first token, and for each later one."""

    ttft: float
    tpot: float


def usual_rate(snapshot: FleetSnapshot) -> float:
    """The prefill rate to assume of a worker that has measured none: the median of the others."""
    rates = sorted(worker.prefill_rate for worker in snapshot.workers if worker.prefill_rate > 0)
    return rates[len(rates) // 2] if rates else UNMEASURED_RATE


def usual_step(snapshot: FleetSnapshot) -> float:
    """Seconds that a step is assumed to take of a worker that has measured none: the median of the others."""
    times = sorted(worker.step_time for worker in snapshot.workers if worker.step_time > 0)
    return times[len(times) // 2] if times else 0.0


def prefill_cost(worker: WorkerView, tokens: int, to_compute: int, usual: float, weights: Weights) -> float:
    """Seconds until a prompt of `tokens`, sent now, is computed: the queue, then what is left of it, weighted."""
    return _queue_seconds(worker, usual) + weights.prefix_cache * own_seconds(worker, tokens, to_compute, usual)


def prefill_seconds(worker: WorkerView, tokens: int, to_compute: int, usual: float) -> float:
    """Seconds until a prompt of `tokens`, sent now, is computed by a worker that does nothing else."""
    return _queue_seconds(worker, usual) + own_seconds(worker, tokens, to_compute, usual)


def prompt_share(worker: WorkerView, tpot: float, usual: float) -> float:
    """The part of a worker's time that prompts may take beside the sequences there, so that steps last no longer than
    `tpot`: 1 without any, 0 where decoding alone takes as long. `usual` is a step's time where none was measured."""
    if not worker.in_flight:
        return 1.0
    return max(0.0, 1 - step_seconds(worker, worker.in_flight, 0, usual) / tpot)


def _queue_seconds(worker: WorkerView, usual: float) -> float:
    return worker.backlog / (worker.prefill_rate or usual)


def own_seconds(worker: WorkerView, tokens: int, to_compute: int, usual: float) -> float:
    """Seconds to compute what is left of a prompt of `tokens`, without the queue before it."""
    cost = worker.prefill_cost
    return compute_seconds(cost, tokens, to_compute) if cost else to_compute / (worker.prefill_rate or usual)


def compute_seconds(cost: PrefillCoefficients, tokens: float, to_compute: float) -> float:
    """Seconds to compute the last `to_compute` of a prompt's tokens, each of which attends to all before it."""
    steps = -(-to_compute // cost.chunk_tokens)
    context = tokens - to_compute / 2  # of a token, on average
    return steps * cost.per_step + to_compute * (cost.per_token + cost.per_pair * context)


def decode_load(worker: WorkerView, tokens: int, matched: int, usual: float, weights: Weights) -> float:
    """How crowded the worker is with a sequence of `tokens`, `matched` blocks of which it holds: share of its arena
    that is taken, sequences per step, and what its steps then take."""
    fullness = 1 - (worker.room - worker.blocks_for(tokens) + matched) / max(1, worker.num_blocks)
    running = worker.in_flight
    load = weights.kv_cache_utilization * fullness * fullness + RUNNING_WEIGHT * running
    return load + weights.step_time * step_seconds(worker, running + 1, tokens, usual)


def step_seconds(worker: WorkerView, rows: int, tokens: int, usual: float) -> float:
    """Seconds of its steps with so many sequences, one of them of `tokens`. What its last steps took says less: they
    may be long past, and of another batch."""
    cost = worker.decode_cost
    if cost is None:
        return worker.step_time or usual
    return cost.per_step + cost.per_row * rows + cost.per_context * (worker.context_tokens + tokens)


def adapter_cost(worker: WorkerView, digest: str, weights: Weights) -> float:
    """Seconds that an adapter costs which it has to load first."""
    return 0.0 if digest in worker.loaded_adapters else weights.adapter


def transfer_seconds(uncached: int) -> float:
    """Seconds to carry the KV of tokens that the decode worker does not hold."""
    return uncached / TRANSFER_RATE


def rounded(cost: float) -> int:
    """The cost in units of RESOLUTION."""
    return round(cost / RESOLUTION)
