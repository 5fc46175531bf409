"""Costs of a sequence on a worker, in seconds or in terms added to seconds. Lower is better."""

from dataclasses import dataclass

from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_protocol.step_target import STEP_TARGET
from legato_protocol.wire.load import PrefillCoefficients

UNMEASURED_RATE = 1000.0  # tokens per second, in a fleet where no worker has measured its rate yet
RESOLUTION = 0.01  # seconds: costs closer than this are equal, so that load rather than noise breaks the tie

RUNNING_WEIGHT = 0.02  # each sequence of a batch makes every step a little longer
TRANSFER_RATE = 50_000.0  # tokens per second of a hand-off, which skips blocks that the receiver has


@dataclass(frozen=True, slots=True)
class Weights:
    """The manifest's `routing.weights`: the weight of each term against a second of waiting in a queue.

    `prefix_cache`: a second of computing uncached tokens. Others wait for it too, so waiting for a cached prefix beats
    computing it again, unless the queue there is long. `kv_cache_utilization`: a full arena; a preemption costs about a
    prefill. `step_time`: the number of output tokens whose steps count. `adapter`: an adapter that must be loaded, and
    may evict another one.
    """

    prefix_cache: float = 2.0
    kv_cache_utilization: float = 1.0
    step_time: float = 20.0
    adapter: float = 0.5


@dataclass(frozen=True, slots=True)
class Objectives:
    """The manifest's `slo`: seconds to the first token, and per later one."""

    ttft: float
    tpot: float


def usual_rate(snapshot: FleetSnapshot) -> float:
    """Returns the prefill rate assumed for workers that have measured none: the median of the others."""
    rates = sorted(worker.prefill_rate for worker in snapshot.workers if worker.prefill_rate > 0)
    return rates[len(rates) // 2] if rates else UNMEASURED_RATE


def usual_step(snapshot: FleetSnapshot) -> float:
    """Returns the step time in seconds assumed for workers that have measured none: the median of the others."""
    times = sorted(worker.step_time for worker in snapshot.workers if worker.step_time > 0)
    return times[len(times) // 2] if times else 0.0


def usual_put_rate(snapshot: FleetSnapshot) -> float:
    """Returns the blocks per second assumed for workers that have not sent any recently: the median of the others."""
    rates = sorted(worker.put_rate for worker in snapshot.workers if worker.put_rate > 0)
    if rates:
        return rates[len(rates) // 2]
    return TRANSFER_RATE / max((worker.block_size for worker in snapshot.workers), default=1)


def prefill_cost(worker: WorkerView, tokens: int, to_compute: int, usual: float, weights: Weights) -> float:
    """Returns the weighted seconds until a prompt of `tokens`, sent now, is computed: the queue, then its own part."""
    return queue_seconds(worker, usual) + weights.prefix_cache * own_seconds(worker, tokens, to_compute, usual)


def prefill_seconds(worker: WorkerView, tokens: int, to_compute: int, usual: float) -> float:
    """Returns the seconds until a prompt of `tokens`, sent now, is computed by a worker that does nothing else."""
    return queue_seconds(worker, usual) + own_seconds(worker, tokens, to_compute, usual)


def prompt_share(worker: WorkerView, tpot: float, usual: float) -> float:
    """Returns the part of a worker's time that prompts may take so that steps keep to the target for `tpot`.

    1 without running sequences, 0 if decoding takes all of it. `usual` is the step time if none was measured.
    """
    if not worker.in_flight:
        return 1.0
    return max(0.0, 1 - step_seconds(worker, worker.in_flight, 0, usual) / (STEP_TARGET * tpot))


def queue_seconds(worker: WorkerView, usual: float) -> float:
    """Returns the seconds until the prompts that the worker has are computed."""
    return worker.backlog / (worker.prefill_rate or usual)


def own_seconds(worker: WorkerView, tokens: int, to_compute: int, usual: float) -> float:
    """Returns the seconds to compute the rest of a prompt of `tokens`, without the queue before it."""
    cost = worker.prefill_cost
    return compute_seconds(cost, tokens, to_compute) if cost else to_compute / (worker.prefill_rate or usual)


def compute_seconds(cost: PrefillCoefficients, tokens: float, to_compute: float) -> float:
    """Returns the seconds to compute the last `to_compute` of a prompt's tokens, which attend to all before them."""
    steps = -(-to_compute // cost.chunk_tokens)
    context = tokens - to_compute / 2  # of a token, on average
    return steps * cost.per_step + to_compute * (cost.per_token + cost.per_pair * context)


def usual_tokens(cost: PrefillCoefficients, tokens: int, to_compute: int) -> int:
    """Returns how many tokens of the worker's recent prompts take as long as the last `to_compute` of a prompt's."""
    per_token = cost.per_step / cost.chunk_tokens + cost.per_token + cost.per_pair * (tokens - to_compute / 2)
    return max(1, round(to_compute * per_token * cost.rate))


def decode_load(worker: WorkerView, tokens: int, matched: int, usual: float, weights: Weights) -> float:
    """Returns the load of the worker with a sequence of `tokens`, of which it has `matched` blocks.

    Terms: the used share of its arena, sequences per step, and step time.
    """
    fullness = 1 - (worker.room - worker.blocks_for(tokens) + worker.blocks_of(matched)) / max(1, worker.num_blocks)
    running = worker.in_flight
    load = weights.kv_cache_utilization * fullness * fullness + RUNNING_WEIGHT * running
    return load + weights.step_time * step_seconds(worker, running + 1, tokens, usual)


def step_seconds(worker: WorkerView, rows: int, tokens: int, usual: float) -> float:
    """Returns the step time with `rows` sequences, one of them of `tokens`.

    The last measured steps say less: they may be long past, and of another batch.
    """
    cost = worker.decode_cost
    if cost is None:
        return worker.step_time or usual
    return cost.per_step + cost.per_row * rows + cost.per_context * (worker.context_tokens + tokens)


def adapter_cost(worker: WorkerView, digest: str, weights: Weights) -> float:
    """Returns the cost in seconds of an adapter that must be loaded first."""
    return 0.0 if digest in worker.loaded_adapters else weights.adapter


def transfer_seconds(uncached: int) -> float:
    """Returns the seconds to transfer the KV of tokens that the decode worker has not cached."""
    return uncached / TRANSFER_RATE


def rounded(cost: float) -> int:
    """Returns the cost in units of RESOLUTION."""
    return round(cost / RESOLUTION)
