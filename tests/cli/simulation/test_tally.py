"""Figures of a run."""

import pytest

from legato_cli.simulation.request import SimulatedRequest
from legato_cli.simulation.result import Quantiles
from legato_cli.simulation.tally import Tally, quantiles, reversals
from legato_cli.simulation.workload import Arrival
from legato_operator.api.resources import Slo


def _ended(at, ttft, tpot, output=11):
    request = SimulatedRequest(0, Arrival(at, 100, output), 100)
    request.first = at + ttft
    request.done = request.first + tpot * (output - 1)
    return request


@pytest.mark.parametrize(("ttft", "tpot", "good"), [(0.9, 0.09, 1), (1.1, 0.09, 0), (0.9, 0.11, 0)])
def test_only_requests_that_were_served_within_both_objectives_are_good(ttft, tpot, good):
    """One of four ended, and one was refused."""
    tally, request = Tally(Slo(ttft="1s", tpot="100ms")), _ended(5.0, ttft, tpot)
    for _ in range(4):
        tally.arrived(request)
    tally.ended(request)
    tally.refuse(request)
    result = tally.result("it", "load", 7200.0, 10.0)
    assert (result.attainment, result.unfinished, result.gpu_hours) == (good / 4, 2, 2.0)


def test_quantiles_are_by_nearest_rank():
    assert quantiles([float(i) for i in range(100, 0, -1)]) == Quantiles(50.0, 90.0, 99.0)
    assert quantiles([]) == Quantiles(0.0, 0.0, 0.0)


def test_a_reversal_is_an_opposite_change_within_600_seconds():
    sizes = [(0, 1), (100, 3), (699, 2), (1300, 3), (1301, 4), (1302, 4)]
    changes = [(float(at), {"prefill": size, "decode": 1}) for at, size in sizes]
    assert reversals(changes, 0.0, 7200.0) == {"prefill": 0.5, "decode": 0.0}
    assert reversals([*changes, (1400.0, {"prefill": 3, "decode": 1})], 700.0, 4300.0) == {
        "prefill": 1.0,
        "decode": 0.0,
    }
