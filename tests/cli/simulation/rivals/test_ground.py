"""Estimates of what a worker can do, by hand."""

import pytest

from legato_cli.simulation.rivals.ground import Ground, spread
from legato_cli.simulation.workload import Arrival, Workload
from legato_engine.runner.profile import Profile, StepTimes

STEP = StepTimes(per_step=0.01, per_row=0.001, per_context=0.0, per_token=0.001, per_pair=0.0)


def ground(arrivals, step=STEP, kv_tokens=10_000, tpot=0.05) -> Ground:
    profile = Profile("test", step, kv_tokens, 60.0)
    return Ground(Workload("w", tuple(arrivals), 512), profile, 1.0, tpot, {"prefill": 4, "decode": 4}, 256)


def test_busy_prefill_worker():
    """Prompts of 90 and 190 tokens take 0.1 s and 0.2 s."""
    assert ground([Arrival(0, 90, 1), Arrival(1, 190, 1)]).prefill_rate == pytest.approx(2 / 0.3)


def test_seen_prefixes_are_cached():
    arrivals = [Arrival(0, 1024, 1, (1, 2)), Arrival(1, 1100, 1, (1, 2, 3)), Arrival(2, 1100, 1, (4, 2))]
    assert ground(arrivals).uncached == (1024, 76, 1100)


def test_rows_are_bounded_by_time_and_by_room():
    """40 rows make a step of 0.05 s; sequences of 100 + 10/2 tokens fit 95 times into 10,000."""
    one = [Arrival(0, 100, 10)]
    assert ground(one).rows == pytest.approx(40)
    assert ground(one).full == pytest.approx(40 * 105 / 10_000)
    assert ground(one, tpot=1.0).rows == pytest.approx(10_000 / 105)
    assert ground(one, tpot=1.0).full == 1
    assert ground(one).decode_rate == pytest.approx(40 / (10 * 0.05))


def test_pairs_count_the_tokens_before():
    """4 tokens after 10: 4 × (10 + 2.5) pairs."""
    step = StepTimes(per_step=1, per_row=0, per_context=0, per_token=0, per_pair=0.5)
    assert ground([Arrival(0, 1, 1)], step).prefill_seconds(4, 10) == pytest.approx(1 + 0.5 * 50)


def test_spread_is_geometric():
    assert spread(1, 8, 4) == pytest.approx((1, 2, 4, 8))
