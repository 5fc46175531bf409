"""A plan is made for the busiest part of a trace; traces without a rate or without answers are refused."""

import pytest

from legato_simulator.planner import window
from legato_simulator.planner.window import UnusableTrace
from legato_simulator.workload.workload import Arrival, Workload


def _busy(count, *busy):
    """A request each second, with ten times as many tokens in some of them."""
    return Workload("day", tuple(Arrival(float(at), 1000 if at in busy else 100, 10) for at in range(count)))


def test_the_busiest_window_counts_and_what_came_before_warms_up():
    load = window.busiest(_busy(100, 50, 53), 10)
    assert [arrival.prompt for arrival in load.workload.arrivals].count(1000) == 2
    assert (load.since, load.requests, load.seconds) == (2.0, 11, 10.0)


def test_a_load_changes_times_and_nothing_else():
    load = window.busiest(_busy(100, 50), 10)
    faster = load.at(2.0)
    assert (faster.requests, faster.rate, faster.since) == (load.requests, 2 * load.rate, load.since / 2)
    assert [each.prompt for each in faster.workload.arrivals] == [each.prompt for each in load.workload.arrivals]


def test_a_dense_trace_ends_the_window_earlier(monkeypatch):
    monkeypatch.setattr(window, "MOST_REQUESTS", 5)
    load = window.busiest(_busy(100, 50), 10)
    assert (load.since, load.requests, load.seconds) == (2.0, 5, 4.0)


def test_a_short_trace_is_simulated_as_it_is():
    day = _busy(10)
    assert window.busiest(day, 600).workload is day


@pytest.mark.parametrize(
    ("arrivals", "reason"),
    [
        ((Arrival(0.0, 10, 10), Arrival(1e4, 90, 10)), "busiest 600 s of odd .* at a single time.* longer --window"),
        ((Arrival(0.0, 10, 10),), "1 request, and thus no rate"),
        ((Arrival(0.0, 10, 10),) * 3, "3 requests at the same time"),
        ((Arrival(0.0, 10, 1), Arrival(1.0, 10, 1)), "no answer has more than one token"),
    ],
)
def test_a_trace_without_a_rate_or_answers_is_refused(arrivals, reason):
    with pytest.raises(UnusableTrace, match=reason):
        window.busiest(Workload("odd", arrivals), 600)
