"""`Load`, as gateways are told it, and how often. Pure."""

from legato_engine.core.rates import Rates
from legato_engine.scheduler.results import SchedulerLoad
from legato_protocol.load import Load

BUSY_INTERVAL = 0.05  # seconds between two while something changes
IDLE_INTERVAL = 0.5  # and while nothing does: gateways take silence for death


def of(
    load: SchedulerLoad,
    rates: Rates,
    now: float,
    *,
    draining: bool,
    credits: int,
    slots: int,
    step_age: float = 0.0,
    step_expected: float = 0.0,
    held: int = 0,
    adapters: tuple[str, ...] = (),
) -> Load:
    """What the scheduler says, and what only its caller knows."""
    return Load(
        queue_tokens=load.queue_tokens,
        waiting=load.waiting + held,
        running=load.running,
        free_blocks=load.free_blocks,
        cached_blocks=load.cached_blocks,
        used_blocks=load.used_blocks,
        quarantined_blocks=load.quarantined_blocks,
        prefill_rate=load.prefill_cost.rate if load.prefill_cost is not None else 0.0,
        step_time=rates.step_time,
        draining=draining,
        credits=credits,
        parked=load.parked,
        parked_tokens=load.parked_tokens,
        granted_blocks=load.granted_blocks,
        pending_blocks=load.pending_blocks,
        growth_blocks=load.growth_blocks,
        slots=slots,
        decoding=load.decoding,
        context_tokens=load.context_tokens,
        preemptions=load.preemptions,
        prefill_age=rates.prefill_age(now),
        decode_age=rates.decode_age(now),
        prefill_cost=load.prefill_cost,
        decode_cost=load.decode_cost,
        step_age=step_age,
        step_expected=step_expected,
        paused_blocks=load.paused_blocks,
        adapters=adapters,
        prompts=load.prompts,
        prompt_tokens=load.prompt_tokens,
    )
