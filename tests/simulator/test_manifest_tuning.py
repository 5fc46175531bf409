"""The search finds bounds that cost less or miss less, on services whose attainment is known by formula."""

from dataclasses import dataclass

import pytest
from known_signals import spec
from simulation_results import result, sample

from legato_operator.api import rules
from legato_operator.api.resources import Spec
from legato_simulator.manifest_tuning import Choice, tune
from legato_simulator.report import tuning_text
from legato_simulator.workload.workload import Workload

BOUNDS = {"prefill": {"min": 1, "max": 8}, "decode": {"min": 1, "max": 8}}
DAYS = (Workload("monday", ()), Workload("tuesday", ()))


@dataclass(frozen=True)
class _Service:
    """Needs 4 and 2 workers half of the time. Reaches 96 % with 4 prefill workers kept and 2 decode workers allowed."""

    spec: Spec
    harder: str = ""  # a workload that it serves worse

    def simulate(self, workload, scaler):
        scaling = self.spec.scaling
        least, most = scaling.prefill.min, scaling.decode.max
        attainment = (0.96 if least >= 4 else 0.80) - (0 if most >= 2 else 0.3) - 0.1 * (workload.name == self.harder)
        hours = least + min(2, most) + scaling.decode.min + scaling.scale_down_stabilization / 3600
        desired = ({"prefill": 1, "decode": 1}, {"prefill": 4, "decode": 2})
        timeline = tuple(sample(float(at), desired=desired[at % 2]) for at in range(20))
        return result(workload=workload.name, attainment=attainment, gpu_hours=hours, timeline=timeline)

    def legato(self):
        return None


def _tune(days=DAYS[:1], jobs=1, harder="", make=_Service, **scaling):
    return tune(spec(scaling={**BOUNDS, **scaling}), lambda written: make(written, harder), days, jobs)


def test_the_cheapest_choice_that_is_good_enough_is_chosen():
    best = _tune().best
    (pool, least, _), (_, _, most) = best.choice.bounds
    assert (pool, least, most >= 2, best.choice.window) == ("prefill", 4, True, 60)
    assert best.attainment == pytest.approx(0.96)


def test_the_first_trial_is_the_manifest_as_written():
    known = spec(scaling={**BOUNDS, "scaleDownStabilization": "7m"})
    first = _tune(scaleDownStabilization="7m").trials[0].choice
    assert first == Choice((("prefill", 1, 8), ("decode", 1, 8)), 420.0)
    assert first.spec(known) == known


def _beats(one, other):
    """At least as good in both figures, and better in one."""
    figures = [(trial.attainment, -trial.gpu_hours) for trial in (one, other)]
    return figures[0] != figures[1] and all(better >= worse for better, worse in zip(*figures, strict=True))


def test_no_choice_on_the_front_is_beaten_and_all_others_are():
    made = _tune()
    for trial in made.front:
        assert not any(_beats(other, trial) for other in made.trials)
    for trial in (trial for trial in made.trials if trial not in made.front):
        figures = trial.attainment, trial.gpu_hours
        same = any((other.attainment, other.gpu_hours) == figures for other in made.front)
        assert same or any(_beats(other, trial) for other in made.front)
    attained = [trial.attainment for trial in made.front]
    assert attained == sorted(set(attained))
    assert len(made.front) >= 2


def test_only_allowed_choices_are_tried_once_each_and_nothing_but_the_three_fields_differs():
    limits, seen = {"gpuBudget": 9, "maxPrefillPerDecode": 2}, []
    known, changed = spec(scaling={**BOUNDS, **limits}), {"prefill", "decode", "scale_down_stabilization"}
    for trial in _tune(
        make=lambda *given: (seen.append(Choice.from_spec(given[0])), _Service(*given))[1], **limits
    ).trials:
        made = trial.choice.spec(known)
        assert not rules.problems(made)
        assert made.scaling.model_dump(exclude=changed) == known.scaling.model_dump(exclude=changed)
        assert made.model_dump(exclude={"scaling"}) == known.model_dump(exclude={"scaling"})
        assert all(most <= 8 for _, _, most in trial.choice.bounds)
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize(("least", "empty"), [(1, False), (0, True)])
def test_only_a_pool_that_may_be_empty_is(least, empty):
    trials = _tune(prefill={"min": least, "max": 8}).trials
    assert any(least == 0 for trial in trials for _, least, _ in trial.choice.bounds) == empty


def test_on_several_workloads_the_worst_attainment_and_all_hours_count():
    made = _tune(DAYS, harder="tuesday")
    first = made.trials[0]
    assert first.attainment == pytest.approx(0.7)
    assert first.gpu_hours == pytest.approx(2 * first.results[0].gpu_hours)
    assert made.best.attainment < 0.95
    assert "None reaches 95%" in tuning_text.text(made)
