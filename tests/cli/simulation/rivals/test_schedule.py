from observations import observed, sizes_over

from legato_cli.simulation.rivals.schedule import Schedule, expected
from legato_cli.simulation.workload import Arrival, Workload


def test_periods_are_counted():
    arrivals = tuple(Arrival(at, 1, 1) for at in (0, 10, 599, 600, 1900))
    assert expected(Workload("w", arrivals)) == (3 / 600, 1 / 600, 0, 1 / 600)


def test_schedule_is_ahead_of_its_time_and_behind_nothing():
    """3 requests a second are expected, and 12 from 600 s on: 3 for a prefill worker, 2 for a decode worker."""
    scaler = Schedule(3, 2, expected=(3.0, 12.0, 0.0), ahead=60).scaler()
    found = [scaler.sizes(observed(now=now))["prefill"] for now in (0, 538, 540, 1150, 1199)]
    assert found == [2, 1, 4, 4, 4]


def test_larger_of_schedule_and_rate_holds():
    scaler = Schedule(3, 2, expected=(3.0,)).scaler()
    assert sizes_over(scaler, 60, requests=12.0) == {"prefill": 4, "decode": 6}


def test_after_the_schedule_the_rate_alone_holds():
    scaler = Schedule(3, 2, expected=(300.0,), ahead=0).scaler()
    assert scaler.sizes(observed(now=600)) == {"prefill": 2, "decode": 4}
