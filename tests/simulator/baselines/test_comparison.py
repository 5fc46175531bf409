"""Comparison: pairs that are compared, whatever finishes first. The figures of each run."""

from dataclasses import dataclass, field

import pytest
from simulation_results import result

from legato_engine.runner.profile import Profile, StepTimes
from legato_operator.api.resources import Slo
from legato_simulator.baselines.baseline import Settings
from legato_simulator.baselines.comparison import Comparison, Entry, compare
from legato_simulator.baselines.fixed import Fixed
from legato_simulator.baselines.search_context import SearchContext
from legato_simulator.engine.request import SimulatedRequest
from legato_simulator.engine.tally import Tally, reversals
from legato_simulator.workload.workload import Arrival, Workload

PROFILE = Profile("test", StepTimes(0.01, 0.001, 0.0, 0.0001, 0.0), 100_000, 60.0)
EASY, HARD = (Workload(name, tuple(Arrival(float(i), 100, 10) for i in range(50))) for name in ("easy", "hard"))


@dataclass(frozen=True)
class NeedSimulator:
    """Attainment is reached with this number of workers of each pool; hours are the workers desired at first."""

    need: dict[str, int] = field(default_factory=lambda: {"easy": 1, "hard": 3})

    def legato(self):
        return Fixed(3, 3)

    def search_context(self, workload):
        return SearchContext(workload, PROFILE, 1.0, 0.1, {"prefill": 4, "decode": 4}, 256)

    def unified(self):
        return NeedSimulator({"easy": 2, "hard": 4})

    def simulate(self, workload, scaler):
        sizes = scaler._sizes
        enough = min(filter(None, sizes.values())) >= self.need[workload.name]
        name = "legato" if sizes == {"prefill": 3, "decode": 3} and not hasattr(scaler, "tuned") else scaler.name
        return result(name, workload.name, attainment=0.99 if enough else 0.5, gpu_hours=sum(sizes.values()))


def _entry(scaler="fixed", tuned_on="steady", **changes):
    return Entry(result(scaler, **changes), Settings(1, 1, Fixed), tuned_on)


def _compare(*workloads, scalers=("fixed",), **given):
    return compare(NeedSimulator(), workloads, scalers, **given)


@pytest.mark.parametrize("jobs", [1, 2])
def test_entries_come_in_the_order_of_the_arguments_and_a_scaler_tuned_elsewhere_misses(jobs):
    reported = []
    made = _compare(EASY, HARD, elsewhere=("fixed",), jobs=jobs, progress=reported.append)
    assert [(e.result.workload, e.settings, e.tuned_on, e.elsewhere, e.result.attainment) for e in made.entries] == [
        ("easy", None, "", False, 0.99),
        ("easy", Settings(1, 1, Fixed), "easy", False, 0.99),
        ("easy", Settings(3, 3, Fixed), "hard", True, 0.99),
        ("hard", None, "", False, 0.99),
        ("hard", Settings(3, 3, Fixed), "hard", False, 0.99),
        ("hard", Settings(1, 1, Fixed), "easy", True, 0.5),
    ]
    assert len(reported) == 6
    assert made.entry("hard", "fixed, tuned on easy") == made.entries[-1]


def test_ratio_is_to_the_cheapest_tuned_baseline_that_reaches_the_attainment():
    legato = Entry(result(gpu_hours=6.0))
    others = (
        _entry(gpu_hours=5.0),
        _entry("dynamo", gpu_hours=4.0, attainment=0.94),
        _entry("schedule", "easy", gpu_hours=3.0),
        _entry("clairvoyant", gpu_hours=2.0),
    )
    comparison = Comparison((legato, *others))
    assert comparison.best("steady") == others[0]
    assert comparison.ratio(legato) == pytest.approx(1.2)
    assert comparison.ratio(others[3]) == pytest.approx(0.4)


def _ended(at, ttft, tpot, output=11):
    request = SimulatedRequest(0, Arrival(at, 100, output), 100)
    request.first = at + ttft
    request.done = request.first + tpot * (output - 1)
    return request


@pytest.mark.parametrize(("ttft", "tpot", "good"), [(0.9, 0.09, 1), (1.1, 0.09, 0), (0.9, 0.11, 0)])
def test_only_requests_that_were_served_within_both_objectives_are_good(ttft, tpot, good):
    tally, request = Tally(Slo(ttft="1s", tpot="100ms")), _ended(5.0, ttft, tpot)
    for _ in range(4):
        tally.arrive(request)
    tally.finish(request)
    tally.refuse(request)
    result = tally.result("it", "load", 7200.0, 10.0)
    assert (result.attainment, result.unfinished, result.gpu_hours) == (good / 4, 2, 2.0)


def test_a_reversal_is_an_opposite_change_within_600_seconds():
    sizes = [(0, 1), (100, 3), (699, 2), (1300, 3), (1301, 4), (1302, 4)]
    changes = [(float(at), {"prefill": size, "decode": 1}) for at, size in sizes]
    assert reversals(changes, 0.0, 7200.0) == {"prefill": 0.5, "decode": 0.0}
    assert reversals([*changes, (1400.0, {"prefill": 3, "decode": 1})], 700.0, 4300.0) == {
        "prefill": 1.0,
        "decode": 0.0,
    }
