"""Tuning, on workloads whose answer is known by formula."""

import random
from dataclasses import dataclass

import pytest
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation_results import result

from legato_cli.simulation.rivals.fixed import Fixed
from legato_cli.simulation.rivals.rival import Grid, Rival
from legato_cli.simulation.tuning import best, reaches, tune


@dataclass(frozen=True)
class Need:
    """Attainment is reached with so many prefill workers, and decode workers by how many prefill there are."""

    decode_for: tuple[int, ...]  # by prefill workers - 1; more prefill, no more decode

    def __call__(self, scaler):
        sizes = scaler._sizes
        enough = sizes["decode"] >= self.decode_for[sizes["prefill"] - 1]
        return result(attainment=0.96 if enough else 0.5, gpu_hours=sizes["prefill"] + 2 * sizes["decode"])


def rival(most: int) -> Rival:
    values = tuple(float(size) for size in range(most, 0, -1))
    return Rival("fixed", "", lambda _: (Grid(values, values, Fixed),))


def test_fewest_hours_that_reach_the_attainment():
    """(3, 1), (2, 3) and (1, 4) suffice; they cost 5, 8 and 9."""
    found = tune(rival(4), None, Need((4, 3, 1, 1)))
    assert found.settings == Fixed(3, 1)
    assert found.reaches
    assert found.result.gpu_hours == 5


def test_few_of_a_large_grid_are_tried():
    """1 of 256: (16, 16), and four for each axis to find (5, 3), which is enough."""
    found = tune(rival(16), None, Need((99,) * 4 + (3,) * 12))
    assert found.settings == Fixed(5, 3)
    assert found.runs <= 10


@settings(max_examples=times(20), deadline=None)
@given(st.lists(st.integers(1, 8), min_size=8, max_size=8))
def test_search_finds_what_the_whole_grid_has(decode_for):
    need = Need(tuple(sorted(decode_for, reverse=True)))
    tried = [(made, need(made.scaler())) for p in range(1, 9) for d in range(1, 9) for made in (Fixed(p, d),)]
    found = tune(rival(8), None, need)
    assert found.result.gpu_hours == best(tried)[1].gpu_hours
    assert found.runs < 48


def test_closest_if_none_reaches():
    def simulate(scaler):
        sizes = scaler._sizes
        return result(attainment=0.1 * min(sizes.values()), gpu_hours=sum(sizes.values()))

    found = tune(rival(4), None, simulate)
    assert found.settings == Fixed(4, 4)
    assert found.runs == 1
    assert not found.reaches


def test_every_grid_is_searched_and_told():
    told = []
    both = Rival("fixed", "", lambda _: (Grid((2.0,), (2.0,), Fixed), Grid((1.0,), (1.0,), Fixed)))
    found = tune(both, None, Need((1, 1)), told.append)
    assert found.settings == Fixed(1, 1)
    assert len(told) == found.runs == 2


@pytest.mark.parametrize(("attainment", "enough"), [(0.9499, False), (0.95, True)])
def test_attainment_is_95_percent(attainment, enough):
    assert reaches(result(attainment=attainment)) is enough


def test_order_of_tries_does_not_matter():
    tried = [(Fixed(i, 1), result(attainment=a, gpu_hours=h)) for i, (a, h) in enumerate([(1, 3), (0.95, 2), (0.9, 1)])]
    for _ in range(5):
        random.shuffle(tried)
        assert best(tried)[1].gpu_hours == 2
