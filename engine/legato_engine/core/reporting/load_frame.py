"""The `Load` frame that gateways receive, and its interval. Pure."""

from legato_engine.core.reporting.rates import Rates
from legato_engine.scheduler.results import SchedulerLoad
from legato_protocol.wire.load import Load, PrefillCoefficients

BUSY_INTERVAL = 0.05  # seconds between two frames while the load changes
IDLE_INTERVAL = 0.5  # seconds while it does not: gateways take a silent worker for dead


def credits(max_waiting: int, waiting: int, draining: bool, gateways: int = 1) -> int:
    """Returns the number of requests that each gateway may send in addition to the `waiting` ones."""
    return 0 if draining else max(0, max_waiting - waiting) // max(1, gateways)


def load_frame(
    load: SchedulerLoad,
    rates: Rates,
    now: float,
    *,
    draining: bool,
    credits: int,
    slots: int,
    step_age: float = 0.0,
    step_expected: float = 0.0,
    pending: int = 0,
    adapters: tuple[str, ...] = (),
    restore_seconds: tuple[float, ...] = (),
    stretch: float = 1.0,
    put_rate: float = 0.0,
    shares_cores: bool = False,
) -> Load:
    """Combines the scheduler's load with values that only the core knows.

    Prompts take `stretch` times as long as their steps: on shared cores, steps wait for time slices.
    """
    prefill_cost = _stretched(load.prefill_cost, stretch)
    return Load(
        queue_tokens=load.queue_tokens,
        waiting=load.waiting + pending,
        running=load.running,
        free_blocks=load.free_blocks,
        cached_blocks=load.cached_blocks,
        used_blocks=load.used_blocks,
        quarantined_blocks=load.quarantined_blocks,
        prefill_rate=prefill_cost.rate if prefill_cost is not None else 0.0,
        step_time=rates.step_time,
        draining=draining,
        credits=credits,
        parked=load.parked,
        parked_tokens=load.parked_tokens,
        granted_blocks=load.granted_blocks,
        pending_blocks=load.pending_blocks,
        growth_blocks=load.growth_blocks,
        next_growth_blocks=load.next_growth_blocks,
        slots=slots,
        decoding=load.decoding,
        context_tokens=load.context_tokens,
        preemptions=load.preemptions,
        prefill_age=rates.prefill_age(now),
        decode_age=rates.decode_age(now),
        prefill_cost=prefill_cost,
        decode_cost=load.decode_cost,
        step_age=step_age,
        step_expected=step_expected,
        paused_blocks=load.paused_blocks,
        paused=load.paused,
        granted=load.granted,
        adapters=adapters,
        prompts=load.prompts,
        prompt_tokens=load.prompt_tokens,
        restore_seconds=restore_seconds,
        put_rate=put_rate,
        shares_cores=shares_cores,
    )


def _stretched(cost: PrefillCoefficients | None, stretch: float) -> PrefillCoefficients | None:
    if cost is None or stretch == 1:
        return cost
    per_step, per_token, per_pair = (stretch * each for each in (cost.per_step, cost.per_token, cost.per_pair))
    return PrefillCoefficients(per_step, per_token, per_pair, cost.chunk_tokens, cost.context)
