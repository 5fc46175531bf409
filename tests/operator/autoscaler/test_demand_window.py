"""Rates from counters: sums over gateways, none negative, whatever restarts or is silent for a while."""

import planned
import pytest

from legato_operator.autoscaler.demand_window import DemandWindow, merged
from legato_operator.autoscaler.signals import PromptLengths
from legato_protocol.demand import LengthBucket


def report(gateway="g0", requests=0, uptime=1e6, outputs=(), head_wait=None):
    """Of requests of 100 tokens, and of answers of these lengths."""
    counted = {
        "arrivals": (LengthBucket(64, requests, 100 * requests),) if requests else (),
        "outputs": (LengthBucket(1, len(outputs), sum(outputs)),),
        "output_squares": float(sum(n * n for n in outputs)),
    }
    return planned.report(gateway, uptime=uptime, head_wait=head_wait or {}, **counted)


def arrived(window, seconds=60.0):
    """In how many seconds how many requests."""
    span, counts = window.last(seconds)
    assert all(lengths.tokens == 100 * lengths.requests for lengths in counts.arrivals())
    return span, sum(lengths.requests for lengths in counts.arrivals())


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        pytest.param([[report(requests=1000)]], None, id="one report shows no rate"),
        pytest.param(
            [[report(requests=1000)], [report(requests=1007)]],
            (2.0, 7),
            id="what came before the first pass is not recent",
        ),
        pytest.param([[report(requests=1000)]] * 2, (2.0, 0), id="no traffic is zero"),
        pytest.param(
            [
                [report(requests=1000)],
                [report(requests=1010)],
                [report("g0-again", requests=4, uptime=1.0)],
                [report("g0-again", requests=6, uptime=3.0)],
            ],
            (6.0, 16),
            id="a gateway that restarts counts from nothing",
        ),
        # The operator began while it was away, or unknown.
        pytest.param(
            [
                [report("a")],
                [report("a"), report("b", requests=1000, uptime=500.0)],
                [report("a"), report("b", requests=1003, uptime=502.0)],
            ],
            (4.0, 3),
            id="a gateway that only the operator does not know yet counts from then",
        ),
        pytest.param(
            [[report("a", 10), report("b", 10)], [report("a", 20), report("b", 20)], [report("a", 25)]],
            (4.0, 25),
            id="a gateway that is gone takes nothing away",
        ),
    ],
)
def test_requests_that_arrived_in_passes_of_two_seconds(passes, expected):
    window = DemandWindow(0.0)
    for number, reports in enumerate(passes):
        window.add(reports, 2.0 * number)
    assert (arrived(window) if window.last(60.0) else None) == expected
    assert not expected or window.last(60.0)[1].output() is None


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


def test_lengths_of_several_gateways_are_merged():
    buckets = [LengthBucket(64, 1, 100), LengthBucket(8, 2, 20), LengthBucket(64, 1, 90)]
    assert merged(buckets) == (PromptLengths(8, 2, 20), PromptLengths(64, 2, 190))


@pytest.mark.parametrize("lengths", [(10,), (10, 10, 10)])
def test_equal_answers_deviate_by_nothing(lengths):
    window = DemandWindow(0.0)
    window.add([report()], 0.0)
    window.add([report(outputs=lengths)], 2.0)
    assert (window.last(60.0)[1].output().mean, window.last(60.0)[1].output().deviation) == (10.0, 0.0)
