"""Rates from counters: sums over gateways, none negative, whatever restarts or is silent for a while."""

import pytest

from legato_operator.autoscaler.demand_window import DemandWindow, merged
from legato_operator.autoscaler.signals import PromptLengths
from legato_protocol.demand import DemandReport, LengthBucket


def report(gateway="g0", requests=0, uptime=1e6, outputs=(), head_wait=None):
    """Of requests of 100 tokens, and of answers of these lengths."""
    return DemandReport(
        gateway=gateway,
        uptime=uptime,
        arrivals=(LengthBucket(64, requests, 100 * requests),) if requests else (),
        refused={},
        outputs=(LengthBucket(1, len(outputs), sum(outputs)),),
        output_squares=float(sum(n * n for n in outputs)),
        head_wait=head_wait or {},
        waiting=(),
        held_requests=0,
        held_tokens=0,
        held_prompt_tokens=0,
        workers=(),
    )


def arrived(window, seconds=60.0):
    """In how many seconds how many requests."""
    span, counts = window.last(seconds)
    assert all(lengths.tokens == 100 * lengths.requests for lengths in counts.arrivals())
    return span, sum(lengths.requests for lengths in counts.arrivals())


def test_one_report_tells_no_rate():
    window = DemandWindow(0.0)
    window.add([report(requests=1000)], 0.0)
    assert window.last(60.0) is None


def test_what_a_gateway_counted_before_it_was_asked_is_not_recent():
    window = DemandWindow(0.0)
    window.add([report(requests=1000)], 0.0)
    window.add([report(requests=1007)], 2.0)
    assert arrived(window) == (2.0, 7)


def test_no_traffic_is_zero():
    window = DemandWindow(0.0)
    for now in (0.0, 2.0):
        window.add([report(requests=1000)], now)
    assert arrived(window) == (2.0, 0)
    assert window.last(60.0)[1].output() is None


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


def test_a_gateway_that_restarts_counts_from_nothing():
    window = DemandWindow(0.0)
    window.add([report(requests=1000)], 0.0)
    window.add([report(requests=1010)], 2.0)
    window.add([report("g0-again", requests=4, uptime=1.0)], 4.0)
    window.add([report("g0-again", requests=6, uptime=3.0)], 6.0)
    assert arrived(window) == (6.0, 16)


def test_a_gateway_that_is_new_to_the_operator_alone_counts_from_then():
    """The operator began while it was away, or unknown."""
    window = DemandWindow(0.0)
    window.add([report("a")], 0.0)
    window.add([report("a"), report("b", requests=1000, uptime=500.0)], 2.0)
    window.add([report("a"), report("b", requests=1003, uptime=502.0)], 4.0)
    assert arrived(window) == (4.0, 3)


def test_what_is_told_late_belongs_to_the_time_in_which_it_was_not_told():
    window = DemandWindow(0.0)
    for step in range(61):
        silent = 10 < step < 50
        window.add([] if silent else [report(requests=10 * step)], 2.0 * step)
    assert arrived(window, 10.0) == (10.0, 50)
    assert arrived(window, 60.0) == (60.0, 300)


def test_a_gateway_that_is_gone_takes_nothing_away():
    window = DemandWindow(0.0)
    window.add([report("a", 10), report("b", 10)], 0.0)
    window.add([report("a", 20), report("b", 20)], 2.0)
    window.add([report("a", 25)], 4.0)
    assert arrived(window) == (4.0, 25)


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


def test_lengths_of_several_gateways_are_merged():
    buckets = [LengthBucket(64, 1, 100), LengthBucket(8, 2, 20), LengthBucket(64, 1, 90)]
    assert merged(buckets) == (PromptLengths(8, 2, 20), PromptLengths(64, 2, 190))


@pytest.mark.parametrize("lengths", [(10,), (10, 10, 10)])
def test_equal_answers_deviate_by_nothing(lengths):
    window = DemandWindow(0.0)
    window.add([report()], 0.0)
    window.add([report(outputs=lengths)], 2.0)
    assert (window.last(60.0)[1].output().mean, window.last(60.0)[1].output().deviation) == (10.0, 0.0)
