"""Rates from counters: sums over gateways, none negative, whatever restarts or is silent for a while."""

import planned
import pytest

from legato_operator.autoscaler.demand_window import DemandWindow
from legato_protocol.wire.demand import LengthBucket


def report(gateway="g0", requests=0, uptime=1e6, outputs=(), head_wait=None):
    """A window of requests of 100 tokens, and of answers of these lengths."""
    counted = {
        "arrivals": (LengthBucket(64, requests, 100 * requests),) if requests else (),
        "outputs": (LengthBucket(1, len(outputs), sum(outputs)),),
        "output_squares": float(sum(n * n for n in outputs)),
    }
    return planned.report(gateway, uptime=uptime, head_wait=head_wait or {}, **counted)


def arrived(window, seconds=60.0):
    span, counts = window.last(seconds)
    assert all(lengths.tokens == 100 * lengths.requests for lengths in counts.arrivals())
    return span, sum(lengths.requests for lengths in counts.arrivals())


AGAIN = [report("g0-again", requests=requests, uptime=uptime) for requests, uptime in ((4, 1.0), (6, 3.0))]
NEW = [report("b", requests=requests, uptime=uptime) for requests, uptime in ((1000, 500.0), (1003, 502.0))]


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        ([[report(requests=1000)]], None),  # one report shows no rate
        ([[report(requests=1000)], [report(requests=1007)]], (2.0, 7)),  # what came before the first is not recent
        ([[report(requests=1000)]] * 2, (2.0, 0)),  # no traffic is zero
        # A gateway that restarts counts from nothing.
        ([[report(requests=1000)], [report(requests=1010)], *([each] for each in AGAIN)], (6.0, 16)),
        # One that only the operator does not know yet counts from then: it began while that was away, or unknown.
        ([[report("a")], *([report("a"), each] for each in NEW)], (4.0, 3)),
        # One that is gone takes nothing away.
        ([[report("a", 10), report("b", 10)], [report("a", 20), report("b", 20)], [report("a", 25)]], (4.0, 25)),
    ],
)
def test_requests_that_arrived_in_passes_of_two_seconds(passes, expected):
    window = DemandWindow(0.0)
    for number, reports in enumerate(passes):
        window.add(reports, 2.0 * number)
    assert (arrived(window) if window.last(60.0) else None) == expected
    assert not expected or window.last(60.0)[1].output() is None


def test_a_gateway_that_reported_no_change_is_as_one_that_was_polled_all_the_time():
    polled, filled = DemandWindow(0.0), DemandWindow(0.0)
    for window in (polled, filled):
        window.add([report(requests=10)], 0.0)
    for second in range(2, 39, 2):
        polled.add([report(requests=10)], float(second))
    filled.fill(39.0, 2.0)
    for window in (polled, filled):
        window.add([report(requests=50)], 40.0)
    for seconds in (4.0, 10.0, 40.0):
        assert arrived(filled, seconds) == arrived(polled, seconds) == (seconds, 40)


def test_a_window_is_filled_from_its_first_report_and_not_backwards():
    window = DemandWindow(0.0)
    window.fill(100.0, 2.0)
    window.add([report(requests=10)], 100.0)
    window.fill(99.0, 2.0)
    window.add([report(requests=13)], 101.0)
    assert arrived(window) == (1.0, 3)


def test_two_gateways_give_the_same_as_one():
    one, two = DemandWindow(0.0), DemandWindow(0.0)
    for step in range(40):
        one.add([report(requests=10 * step, outputs=(3, 4) * step)], 2.0 * step)
        half = [report(name, 5 * step, outputs=(3, 4)[which : which + 1] * step) for which, name in enumerate("ab")]
        two.add(half, 2.0 * step)
    for seconds in (10.0, 60.0):
        assert one.last(seconds) == two.last(seconds)
    assert arrived(one) == (60.0, 300)
    assert (one.last(60.0)[1].output().mean, one.last(60.0)[1].output().deviation) == (3.5, 0.5)


def test_what_is_told_late_belongs_to_the_time_in_which_it_was_not_told():
    window = DemandWindow(0.0)
    for step in range(61):
        silent = 10 < step < 50
        window.add([] if silent else [report(requests=10 * step)], 2.0 * step)
    assert arrived(window, 10.0) == (10.0, 50)
    assert arrived(window, 60.0) == (60.0, 300)


def test_the_window_moves_on():
    window = DemandWindow(0.0)
    for step in range(1000):
        window.add([report(requests=100 if step else 0)], 2.0 * step)
    assert arrived(window) == (60.0, 0)
    assert len(window._sums) < 40


def test_a_clock_that_is_set_back_begins_anew():
    window = DemandWindow(100.0)
    window.add([report(requests=1)], 100.0)
    window.add([report(requests=2)], 50.0)
    assert window.last(60.0) is None
    window.add([report(requests=5)], 52.0)
    assert arrived(window) == (2.0, 3)


def test_the_wait_of_the_head_is_summed_by_cause():
    window = DemandWindow(0.0)
    window.add([report("a", head_wait={"prefill": 5.0}), report("b")], 0.0)
    window.add([report("a", head_wait={"prefill": 6.0}), report("b", head_wait={"credits": 0.5})], 2.0)
    assert window.last(60.0)[1].head_wait == {"prefill": 1.0, "credits": 0.5}
