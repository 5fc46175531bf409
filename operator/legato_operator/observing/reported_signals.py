"""The autoscaler's signals from gateways' reports: summed, with each worker counted once. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from legato_operator.api import roles
from legato_operator.autoscaler.demand_window import NEWEST, RECENT, WINDOW, DemandWindow, merged
from legato_operator.autoscaler.signals import Blocks, DecodeCost, Pool, PrefillCost, Signals, Traffic, WorkerSignals
from legato_operator.observing.observed import Pod
from legato_protocol.wire.demand import DemandReport, ReportedLoad
from legato_protocol.wire.load import Load


def reported_signals(
    window: DemandWindow, pods: Iterable[Pod], reports: Sequence[DemandReport], complete: bool = True
) -> Signals:
    """Returns the autoscaler's signals. Traffic is None unless all gateways reported (`complete`)."""
    return Signals(workers(pods, reports), traffic(window, reports) if reports and complete else None)


def traffic(window: DemandWindow, reports: Sequence[DemandReport]) -> Traffic | None:
    """Returns the sums of all gateways' traffic, or None before the second poll."""
    minute, recent, newest = window.last(WINDOW), window.last(RECENT), window.last(NEWEST)
    if minute is None or recent is None or newest is None:
        return None
    return Traffic(
        seconds=minute[0],
        arrivals=minute[1].arrivals(),
        recent_seconds=recent[0],
        recent=recent[1].arrivals(),
        waiting=merged(bucket for report in reports for bucket in report.waiting),
        queued=sum(report.queued_requests for report in reports),
        queued_tokens=sum(report.queued_tokens for report in reports),
        queued_prompt_tokens=sum(report.queued_prompt_tokens for report in reports),
        output=minute[1].output(),
        head_wait=minute[1].head_wait,
        newest_seconds=newest[0],
        newest=newest[1].arrivals(),
    )


def workers(pods: Iterable[Pod], reports: Iterable[DemandReport]) -> tuple[WorkerSignals, ...]:
    newest: dict[str, ReportedLoad] = {}
    for report in reports:
        for load in report.workers:
            if load.worker not in newest or load.age < newest[load.worker].age:
                newest[load.worker] = load
    measured = [_worker(pod, newest.get(pod.name)) for pod in pods if pod.pool in roles.BOTH]
    return tuple(_with_pool_cost(worker, measured) for worker in measured)


def _worker(pod: Pod, reported: ReportedLoad | None) -> WorkerSignals:
    pool: Pool = "prefill" if pod.pool == roles.PREFILL else "decode"
    draining = pod.on_its_way_out or pod.failed or pod.lost
    if reported is None:
        return WorkerSignals(pod.name, pool, pod.ready, draining, pod.age, pod.start_seconds)
    load = reported.load
    return WorkerSignals(
        pod.name,
        pool,
        pod.ready,
        draining or load.draining,
        pod.age,
        pod.start_seconds,
        sample_age=reported.age,
        queue_tokens=load.queue_tokens,
        parked_tokens=load.parked_tokens,
        prefill_cost=_prefill_cost(load),
        decode_cost=_decode_cost(load),
        blocks=_blocks(reported),
        running=load.decoding,
        waiting=load.waiting + max(0, load.running - load.decoding),
        prompts=load.prompts,
        prompt_tokens=load.prompt_tokens,
        slots=load.slots or None,
        context_tokens=load.context_tokens,
    )


def _prefill_cost(load: Load) -> PrefillCost | None:
    """Returns the cost with a step's fixed part divided among the tokens of a full step: a busy pool has full steps."""
    cost = load.prefill_cost
    if cost is None:
        return None
    per_token = cost.per_token + cost.per_step / cost.chunk_tokens
    return PrefillCost(per_token, cost.per_pair, cost.per_step, cost.chunk_tokens)


def _decode_cost(load: Load) -> DecodeCost | None:
    cost = load.decode_cost
    return None if cost is None else DecodeCost(cost.per_step, cost.per_row, cost.per_context, cost.only_rows)


def _with_pool_cost(worker: WorkerSignals, workers: Sequence[WorkerSignals]) -> WorkerSignals:
    """Returns the worker; if its steps all had the same number of rows, with the median cost of the pool's workers that
    know the cost of a row."""
    if worker.decode_cost is None or not worker.decode_cost.only_rows:
        return worker
    costs = [other.decode_cost for other in workers if other.pool == worker.pool and other.decode_cost is not None]
    known = sorted((cost for cost in costs if not cost.only_rows), key=lambda cost: cost.seconds(1, 0))
    return replace(worker, decode_cost=known[len(known) // 2]) if known else worker


def _blocks(reported: ReportedLoad) -> Blocks:
    load = reported.load
    return Blocks(
        load.free_blocks,
        load.cached_blocks,
        load.used_blocks,
        load.quarantined_blocks,
        load.granted_blocks,
        load.pending_blocks,
        load.growth_blocks,
        reported.block_size,
    )
