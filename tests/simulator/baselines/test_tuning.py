"""Tuning, on workloads whose answer is known by formula."""

from dataclasses import dataclass

import pytest
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation_results import result

from legato_simulator.baselines import tuning
from legato_simulator.baselines.baseline import Baseline, Grid, Settings
from legato_simulator.baselines.fixed import Fixed
from legato_simulator.baselines.tuning import best, tune


@dataclass(frozen=True)
class Need:
    """Attainment is reached with this number of decode workers by the number of prefill workers - 1."""

    decode_for: tuple[int, ...]

    def __call__(self, scaler):
        sizes = scaler._sizes
        enough = sizes["decode"] >= self.decode_for[sizes["prefill"] - 1]
        return result(attainment=0.96 if enough else 0.5, gpu_hours=sizes["prefill"] + 2 * sizes["decode"])


def _grid(most):
    values = tuple(float(size) for size in range(most, 0, -1))
    return Grid(values, values, Fixed)


def _tune(need, *grids):
    return tune(Baseline("fixed", "", lambda _: grids), None, need)


@pytest.mark.parametrize(
    ("most", "decode_for", "settings", "reaches", "runs"),
    [
        # (3, 1), (2, 3) and (1, 4) suffice; they cost 5, 8 and 9.
        pytest.param(4, (4, 3, 1, 1), Settings(3, 1, Fixed), True, 12, id="the cheapest that suffices"),
        # 1 of 256: (16, 16), and four for each axis to find (5, 3), which is enough.
        pytest.param(16, (99,) * 4 + (3,) * 12, Settings(5, 3, Fixed), True, 10, id="few of a large grid are tried"),
        pytest.param(4, (99,) * 4, Settings(4, 4, Fixed), False, 1, id="the most generous one if none suffices"),
    ],
)
def test_few_tries_find_the_best_settings(most, decode_for, settings, reaches, runs):
    best_tried = _tune(Need(decode_for), _grid(most))
    assert (best_tried.settings, tuning.reaches(best_tried.result)) == (settings, reaches)
    assert best_tried.result.gpu_hours == settings.prefill + 2 * settings.decode
    assert best_tried.runs <= runs


@settings(max_examples=times(20), deadline=None)
@given(st.lists(st.integers(1, 8), min_size=8, max_size=8))
def test_search_finds_what_the_whole_grid_has(decode_for):
    need = Need(tuple(sorted(decode_for, reverse=True)))
    tried = [(made, need(made.scaler())) for p in range(1, 9) for d in range(1, 9) for made in (Settings(p, d, Fixed),)]
    found = _tune(need, _grid(8))
    assert found.result.gpu_hours == best(tried)[1].gpu_hours
    assert found.runs < 48
