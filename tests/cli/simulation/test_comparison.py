"""Comparison: who is compared with whom, whatever finishes first."""

import json
from dataclasses import dataclass, field

import pytest
from simulation_results import result

from legato_cli.simulation.comparison import Comparison, Entry, as_json, compare
from legato_cli.simulation.rivals.fixed import Fixed
from legato_cli.simulation.rivals.ground import Ground
from legato_cli.simulation.workload import Arrival, Workload
from legato_engine.runner.profile import Profile, StepTimes

PROFILE = Profile("test", StepTimes(0.01, 0.001, 0.0, 0.0001, 0.0), 100_000, 60.0)
EASY, HARD = (Workload(name, tuple(Arrival(float(i), 100, 10) for i in range(50))) for name in ("easy", "hard"))


@dataclass(frozen=True)
class NeedSimulator:
    """Attainment is reached with so many workers of each pool; hours are the workers that a scaler wishes at first."""

    need: dict[str, int] = field(default_factory=lambda: {"easy": 1, "hard": 3})

    def legato(self):
        return Fixed(3, 3).scaler()

    def ground(self, workload):
        return Ground(workload, PROFILE, 1.0, 0.1, {"prefill": 4, "decode": 4}, 256)

    def unified(self):
        return NeedSimulator({"easy": 2, "hard": 4})

    def simulate(self, workload, scaler):
        sizes = scaler._sizes
        enough = min(sizes.values()) >= self.need[workload.name]
        name = "legato" if sizes == {"prefill": 3, "decode": 3} and not hasattr(scaler, "tuned") else scaler.name
        return result(name, workload.name, attainment=0.99 if enough else 0.5, gpu_hours=sum(sizes.values()))


def entry(scaler="fixed", workload="easy", settings=Fixed(1, 1), tuned_on="easy", **changes) -> Entry:  # noqa: B008
    return Entry(result(scaler, workload, **changes), settings, tuned_on)


@pytest.mark.parametrize("jobs", [1, 2])
def test_entries_come_in_the_order_of_the_arguments(jobs):
    told = []
    found = compare(NeedSimulator(), (EASY, HARD), ("fixed",), ("fixed",), jobs, told.append)
    assert [(e.result.workload, e.settings, e.tuned_on) for e in found.entries] == [
        ("easy", None, ""),
        ("easy", Fixed(1, 1), "easy"),
        ("easy", Fixed(3, 3), "hard"),
        ("hard", None, ""),
        ("hard", Fixed(3, 3), "hard"),
        ("hard", Fixed(1, 1), "easy"),
    ]
    assert len(told) == 6


def test_what_was_tuned_elsewhere_misses_here():
    found = compare(NeedSimulator(), (EASY, HARD), ("fixed",), ("fixed",))
    moved = found.entry("hard", "fixed, tuned on easy")
    assert moved is not None
    assert moved.elsewhere
    assert moved.result.attainment == 0.5


def test_unified_workers_are_another_service():
    """It needs 2 workers where two pools need 1 each."""
    found = compare(NeedSimulator(), (EASY,), ("fixed-unified",)).entry("easy", "fixed-unified")
    assert found is not None
    assert (found.result.gpu_hours, found.chosen) == (2, "decode 2")


def test_one_workload_has_no_elsewhere():
    assert len(compare(NeedSimulator(), (EASY,), ("fixed",), ("fixed",)).entries) == 2


def test_ratio_is_to_the_cheapest_tuned_rival_that_reaches_the_attainment():
    legato = Entry(result(gpu_hours=6.0))
    rivals = (
        entry(gpu_hours=5.0, workload="steady", tuned_on="steady"),
        entry("dynamo", gpu_hours=4.0, attainment=0.94, workload="steady", tuned_on="steady"),
        entry("schedule", gpu_hours=3.0, workload="steady", tuned_on="easy"),
        entry("clairvoyant", gpu_hours=2.0, workload="steady", tuned_on="steady"),
    )
    comparison = Comparison((legato, *rivals))
    assert comparison.best("steady") == rivals[0]
    assert comparison.ratio(legato) == pytest.approx(1.2)
    assert comparison.ratio(rivals[3]) == pytest.approx(0.4)


def test_no_ratio_where_no_rival_reaches_the_attainment():
    comparison = Comparison((Entry(result()), entry(workload="steady", tuned_on="steady", attainment=0.1)))
    assert comparison.best("steady") is None
    assert comparison.ratio(comparison.entries[0]) is None


def test_json_has_every_entry():
    found = as_json(Comparison((Entry(result()), entry(workload="steady", tuned_on="easy", attainment=0.1))))
    assert [
        (row["scaler"], row["tuned_on"], row["settings"], row["ratio"]) for row in json.loads(json.dumps(found))
    ] == [
        ("legato", "", "", None),
        ("fixed", "easy", "prefill 1, decode 1", None),
    ]
    assert "timeline" not in found[0]
