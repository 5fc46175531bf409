"""Workloads by name, and the one thing that changes in each."""

import dataclasses
import functools
from statistics import mean

import pytest

from legato_simulator.workload import synthetic
from legato_simulator.workload.synthetic import SyntheticTraffic
from legato_simulator.workload.workload import Arrival, Workload

TRAFFIC = SyntheticTraffic(rate=5, prompt=2000, output=100, seconds=2000)
RECORDED = Workload("recorded", tuple(Arrival(float(i), 1000 + i, 10, (0, i + 1)) for i in range(100)))


@functools.cache
def named(name):
    return synthetic.named(name, 1, TRAFFIC, None).arrivals


def quarters(name):
    arrivals = named(name)
    return [[a for a in arrivals if i <= a.at * 4 / TRAFFIC.seconds < i + 1] for i in range(4)]


@pytest.mark.parametrize("name", synthetic.NAMES)
def test_same_seed_same_workload_in_order_of_time_and_explained(name):
    short = dataclasses.replace(TRAFFIC, seconds=200)
    one, again, other = (synthetic.named(name, seed, short, RECORDED) for seed in (1, 1, 2))
    assert one == again
    assert [a.at for a in one.arrivals] == sorted(a.at for a in one.arrivals)
    assert all(a.at >= 0 and a.prompt >= 1 and a.output >= 1 for a in one.arrivals)
    assert (one == other) is (name == synthetic.TRACE)
    assert synthetic.ABOUT[name]


def test_means_are_those_asked_for():
    arrivals = named("steady")
    means = len(arrivals), mean(a.prompt for a in arrivals), mean(a.output for a in arrivals)
    assert means == pytest.approx((10_000, 2000, 100), rel=0.05)


@pytest.mark.parametrize(
    ("name", "prompts", "outputs"), [("mix-shift", [1, 3, 0.5, 1], [1] * 4), ("decode-shift", [1] * 4, [1, 4, 0.5, 1])]
)
def test_a_shift_changes_lengths_and_not_requests(name, prompts, outputs):
    found = quarters(name)
    assert [len(part) for part in found] == [pytest.approx(2500, rel=0.07)] * 4
    assert [mean(a.prompt for a in part) / 2000 for part in found] == pytest.approx(prompts, rel=0.08)
    assert [mean(a.output for a in part) / 100 for part in found] == pytest.approx(outputs, rel=0.08)


def test_hit_rate_shift_changes_what_prompts_share():
    found = quarters("hit-rate-shift")
    shared = [sum(512 * len(a.blocks) for a in part) / sum(a.prompt for a in part) for part in found]
    assert shared[1] == 0
    assert shared[0] == pytest.approx(shared[3], rel=0.1)
    assert 0.5 < shared[0] < 0.75
    assert 0.25 < shared[2] < 0.5
    assert len({a.blocks[0] for a in found[0] if a.blocks}) == 32


@pytest.mark.parametrize(
    ("name", "trace", "message"),
    [
        ("trace", None, "workload trace needs a trace"),
        ("superposed", None, "workload superposed needs a trace"),
        ("weekly", RECORDED, r"not a workload: weekly .*mix-shift"),
    ],
)
def test_an_unknown_name_or_a_missing_trace_is_refused(name, trace, message):
    with pytest.raises(ValueError, match=message):
        synthetic.named(name, 1, TRAFFIC, trace)
