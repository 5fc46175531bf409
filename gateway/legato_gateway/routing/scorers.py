"""What a sequence would cost on a worker, in seconds or in terms that are added to seconds. Lower is better."""

from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView

UNMEASURED_RATE = 1000.0  # tokens per second, of workers in a fleet where none has measured its rate yet
RESOLUTION = 0.01  # seconds: costs closer than this are equal, so that load and not noise breaks the tie

FULLNESS_WEIGHT = 1.0  # a full arena counts like a second of waiting: preemption costs about a prefill
RUNNING_WEIGHT = 0.02  # each sequence of a batch makes every step of the others a little longer
TRANSFER_RATE = 50_000.0  # tokens per second that a hand-off carries: blocks held already need no sending


def usual_rate(snapshot: FleetSnapshot) -> float:
    """The prefill rate to assume of a worker that has measured none: the median of the others."""
    rates = sorted(worker.prefill_rate for worker in snapshot.workers if worker.prefill_rate > 0)
    return rates[len(rates) // 2] if rates else UNMEASURED_RATE


def prefill_seconds(worker: WorkerView, uncached: int, usual: float) -> float:
    """Seconds until `uncached` tokens, sent now, are computed: the queue, then they themselves."""
    return (worker.backlog + uncached) / (worker.prefill_rate or usual)


def decode_load(worker: WorkerView, blocks: int) -> float:
    """How crowded the worker is with `blocks` more: share of its arena that is taken, and sequences per step."""
    fullness = 1 - (worker.room - blocks) / max(1, worker.num_blocks)
    return FULLNESS_WEIGHT * fullness**2 + RUNNING_WEIGHT * worker.in_flight


def transfer_seconds(uncached: int) -> float:
    """Seconds to carry the KV of tokens that the decode worker does not hold."""
    return uncached / TRANSFER_RATE


def rounded(cost: float) -> int:
    """The cost in units of RESOLUTION."""
    return round(cost / RESOLUTION)
