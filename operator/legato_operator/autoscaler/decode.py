"""Terms of the decode pool: KV blocks, step time, and concurrent sequences.

All loads are sums over the pool. A single hot worker is left to the gateways, which migrate sequences away from it;
another worker would not help.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

from legato_operator.api.resources import Spec
from legato_operator.autoscaler import coming, queued_share
from legato_operator.autoscaler.coming import FULL
from legato_operator.autoscaler.decision import ACTIVATION, DECODE_ROOM, KV_BLOCKS, SLOTS, STEP_TIME, Term
from legato_operator.autoscaler.prefill import decode_share, prefilling
from legato_operator.autoscaler.signals import DecodeCost, Signals, Traffic, WorkerSignals
from legato_protocol.step_target import STEP_TARGET

DEVIATIONS = 1.645  # standard deviations above the expected blocks: the 95th percentile of a sum of many sequences
DECODE_WAIT_SHARE = 0.5  # of the queue head's wait, from which the queue counts as waiting for decode workers

BLOCKS_EQUATION = "(used + pending + growth + queued + deviations * deviation * sqrt(sequences)) / (capacity * full)"
STEP_EQUATION = "(perRow * rows + perContext * context) / (within * objective - fixed)"
SLOTS_EQUATION = "sequences / (slots * full)"
ROOM_EQUATION = "serving + 1"
ACTIVATION_EQUATION = "min(1, queued + arrived)"


def terms(
    signals: Signals, workers: Sequence[WorkerSignals], spec: Spec, prompts: Sequence[Term] = ()
) -> tuple[Term, ...]:
    """Returns the terms of the decode pool, given the terms `prompts` of the prefill pool."""
    resident = _resident(signals, workers, spec, prompts)
    if signals.traffic is None:
        return (Term.unknown(KV_BLOCKS, "the queued requests (a gateway did not answer)"), *resident)
    return (*resident, *_room(signals, workers, spec), *_activation(signals.traffic, workers))


def _resident(
    signals: Signals, workers: Sequence[WorkerSignals], spec: Spec, prompts: Sequence[Term]
) -> tuple[Term, ...]:
    """Returns the terms of sequences that workers have or will get from the queue.

    The sequences of a draining worker count, because they migrate; its capacity does not.
    With a prefill pool, prompts on decode workers count for the prefill pool until they are computed.
    """
    silent = [worker.name for worker in workers if worker.ready and (worker.blocks is None or worker.running is None)]
    unknown = Term.unknown(KV_BLOCKS, f"the load of {', '.join(silent)}")
    load = [worker for worker in signals.workers if worker.pool == "decode"]
    if spec.disaggregated:
        load = [_without_prompts(worker) for worker in load]
    share = queued_share.queued_share(signals, workers, spec, prompts)
    return (
        *_blocks(signals, workers, load, share),
        *_slots(signals, workers, load, share),
        *_step_time(workers, load, spec.slo.tpot),
        *coming.terms(signals, workers, spec, prompts, _sequences(signals, load, share)),
        *((unknown,) if silent else ()),
    )


def _without_prompts(worker: WorkerSignals) -> WorkerSignals:
    """Returns a worker's load without prompts: sequences that decode, arrive with their KV or were preempted."""
    if worker.waiting is None or worker.blocks is None or not worker.prompts:
        return worker
    blocks, tokens = worker.blocks, worker.prompt_tokens or 0
    waiting = min(blocks.pending, tokens // blocks.size)
    started = min(blocks.used, tokens // blocks.size - waiting)
    left = dataclasses.replace(blocks, pending=blocks.pending - waiting, used=blocks.used - started)
    return dataclasses.replace(worker, waiting=max(0, worker.waiting - worker.prompts), blocks=left)


def _blocks(
    signals: Signals, workers: Sequence[WorkerSignals], load: Sequence[WorkerSignals], share: float
) -> tuple[Term, ...]:
    """Returns the term of KV blocks, all converted to one block size: workers differ while `blockSize` changes."""
    known = [worker.blocks for worker in workers if worker.blocks is not None]
    known = [each for each in known if each.total > each.quarantined]
    if not known:
        return ()
    size = statistics.median_low([each.size for each in known])
    capacities = [(each.total - each.quarantined) * each.size / size for each in known]
    blocks = [worker.blocks for worker in load if worker.blocks is not None]
    traffic = signals.traffic
    output = traffic.output if traffic is not None else None
    numbers = {
        "used": sum(each.used * each.size for each in blocks) / size,
        "pending": sum(each.pending * each.size for each in blocks) / size,
        "growth": sum(each.growth * each.size for each in blocks) / size,
        "queued": float(math.ceil(traffic.queued_prompt_tokens * share / size)) if traffic is not None else 0.0,
        "sequences": _sequences(signals, load, share),
        "deviation": output.deviation / size if output is not None else 0.0,
        "deviations": DEVIATIONS,
        "capacity": statistics.median(capacities),
        "full": FULL,
    }
    return (Term.from_equation(KV_BLOCKS, BLOCKS_EQUATION, numbers),)


def _slots(
    signals: Signals, workers: Sequence[WorkerSignals], load: Sequence[WorkerSignals], share: float
) -> tuple[Term, ...]:
    slots = [worker.slots for worker in workers if worker.slots]
    if not slots:
        return ()
    numbers = {"sequences": _sequences(signals, load, share), "slots": statistics.median(slots), "full": FULL}
    return (Term.from_equation(SLOTS, SLOTS_EQUATION, numbers),)


def _sequences(signals: Signals, load: Sequence[WorkerSignals], share: float) -> float:
    """Returns the sequences that workers have accepted, and a share of the queued requests."""
    accepted = sum((worker.running or 0) + (worker.waiting or 0) for worker in load)
    return accepted + share * (signals.traffic.queued if signals.traffic is not None else 0)


def _step_time(workers: Sequence[WorkerSignals], load: Sequence[WorkerSignals], tpot: float) -> tuple[Term, ...]:
    """Returns the median term of step time, with rows and context divided among the workers.

    Empty if an empty step already exceeds the objective: more workers cannot meet it, as `objectives` reports.
    """
    rows = sum(worker.running or 0 for worker in load)
    if not rows:
        return ()
    costs = [worker.decode_cost for worker in workers if worker.decode_cost is not None]
    if not costs:
        return (Term.unknown(STEP_TIME, "the time of a step (none was measured)"),)
    context = sum(worker.context_tokens or 0 for worker in load)
    by_cost = [_step_term(cost, rows, context, tpot) for cost in costs if cost.fixed < STEP_TARGET * tpot]
    by_cost.sort(key=lambda term: term.known)
    return (by_cost[len(by_cost) // 2],) if by_cost else ()


def _step_term(cost: DecodeCost, rows: int, context: int, tpot: float) -> Term:
    numbers = {
        "perRow": cost.per_row,
        "rows": float(rows),
        "perContext": cost.per_context,
        "context": float(context),
        "within": STEP_TARGET,
        "objective": tpot,
        "fixed": cost.fixed,
    }
    return Term.from_equation(STEP_TIME, STEP_EQUATION, numbers)


def _room(signals: Signals, workers: Sequence[WorkerSignals], spec: Spec) -> tuple[Term, ...]:
    """Returns a term for one more decode worker if the queue waits for decode workers.

    Only serving workers count, so that no further one is requested while one starts.
    """
    assert signals.traffic is not None
    serving = sum(worker.ready for worker in workers)
    share = decode_share(signals, prefilling(signals, spec), spec.slo.ttft)
    if not serving or not signals.traffic.queued or share < DECODE_WAIT_SHARE:
        return ()
    return (Term.from_equation(DECODE_ROOM, ROOM_EQUATION, {"serving": float(serving)}),)


def _activation(traffic: Traffic, workers: Sequence[WorkerSignals]) -> tuple[Term, ...]:
    """Returns a term for one worker if none is ready and a request is queued or arrived recently."""
    arrived = sum(bucket.requests for bucket in traffic.recent)
    if any(worker.ready for worker in workers) or not (traffic.queued or arrived):
        return ()
    return (
        Term.from_equation(
            ACTIVATION, ACTIVATION_EQUATION, {"queued": float(traffic.queued), "arrived": float(arrived)}
        ),
    )
