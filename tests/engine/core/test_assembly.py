"""What a core is made of follows from its settings."""

import pytest

from legato_engine.core.assembly import niceness, scheduler_limits
from legato_engine.scheduler.limits import SchedulerLimits
from legato_engine.settings import WorkerSettings


def test_limits_of_the_scheduler_are_those_of_the_settings() -> None:
    settings = WorkerSettings(
        "decode", "d0", "m", block_size=32, chunk_tokens=64, slo_tpot=0.03, output_reservation="Maximum", max_batch=5
    )
    assert scheduler_limits(settings, 900) == SchedulerLimits(
        "decode", 32, 900, chunk_tokens=64, tpot=0.03, reserve_maximum=True, max_running=5
    )
    assert not scheduler_limits(WorkerSettings("decode", "d0", "m"), 900).reserve_maximum


@pytest.mark.parametrize(
    ("role", "device", "lower"),
    [("prefill", "cpu", True), ("decode", "cpu", False), ("unified", "cpu", False), ("prefill", "cuda", False)],
)
def test_prompts_of_prefill_workers_give_way_to_tokens_of_others(role, device, lower):
    assert (niceness(WorkerSettings(role, "w0", "m", device=device)) > 0) == lower


def test_a_paced_worker_shares_no_cores_with_what_it_would_give_way_to():
    settings = WorkerSettings("prefill", "p0", "m", runner="paced", profile="x")
    assert niceness(settings) == 0
