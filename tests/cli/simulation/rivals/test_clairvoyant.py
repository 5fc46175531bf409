import pytest
from observations import observed

from legato_cli.simulation.rivals.clairvoyant import Clairvoyant, plan
from legato_cli.simulation.rivals.ground import Ground
from legato_cli.simulation.workload import Arrival, Workload
from legato_engine.runner.profile import Profile, StepTimes


def test_plan_is_the_work_of_each_half_minute():
    """A prompt takes 6 s of a prefill worker's 30; then 300 tokens of 0.1 s each, with 10 rows in a worker."""
    step = StepTimes(per_step=0.0001, per_row=0.00999, per_context=0, per_token=0.06, per_pair=0)
    profile = Profile("test", step, 10**9, 60.0)
    arrivals = (Arrival(15, 100, 300), Arrival(60, 100, 1))
    found = plan(Ground(Workload("w", arrivals), profile, 1.0, 0.1, {"prefill": 4, "decode": 4}, 256))
    assert [slot[0] for slot in found] == pytest.approx([0.2, 0, 0.2], abs=1e-3)
    assert [slot[1] for slot in found] == pytest.approx([0.05, 0.05, 0.1 * 0.1 / 30], abs=1e-4)


def test_workers_are_wished_before_they_are_needed():
    """A worker takes 40 s to start, so at 20 s the slot of 60 s counts."""
    scaler = Clairvoyant(0.5, 1.0, plan=((0.4, 0.1), (0.4, 0.1), (1.0, 2.5), (0.0, 0.0)), ahead=40).scaler()
    found = [scaler.sizes(observed(now=now)) for now in (0, 20, 60, 90, 500)]
    assert [sizes["prefill"] for sizes in found] == [1, 2, 2, 0, 0]
    assert [sizes["decode"] for sizes in found] == [1, 3, 3, 0, 0]
