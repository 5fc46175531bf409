"""Scatter plots: every point where its figures say, between labels that are round numbers."""

import re

import pytest

from legato_cli.simulation.scatter import Points, figure


def _drawn(*points, line=None, joined=False, text="it"):
    return figure("Attainment", "%", "all", [Points("tried", "one", [(x, y, text) for x, y in points], joined)], line)


def _labels(svg, edge):
    return [float(value) for value in re.findall(rf'{edge}:[\d.]+%">([\d.-]+) ?<', svg)]


def _dots(svg):
    return [(float(x), float(y)) for x, y in re.findall(r'class="dot one" d="M(-?[\d.]+) (-?[\d.]+)h0"', svg)]


def test_points_lie_where_their_figures_say():
    svg = _drawn((10.0, 80.0), (12.0, 90.0), (18.0, 100.0))
    assert (_labels(svg, "left"), _labels(svg, "bottom")) == ([10, 12, 14, 16, 18], [80, 85, 90, 95, 100])
    assert _dots(svg) == [(0.0, 150.0), (150.0, 75.0), (600.0, 0.0)]


@pytest.mark.parametrize(
    "ends", [(2.14, 2.33), (95.0, 100.0), (0.0, 0.0), (3.0, 3.0), (0.001, 12_345.0), (57.0, 100.0)]
)
def test_an_axis_goes_from_one_round_number_to_another_around_all_values(ends):
    svg = _drawn(*((value, value) for value in ends))
    assert all(0 <= x <= 600 and 0 <= y <= 150 for x, y in _dots(svg))
    assert 2 <= svg.count('style="left:') <= 7
    assert 'style="left:0.00%"' in svg
    assert 'style="left:100.00%"' in svg


def test_a_percentage_never_goes_beyond_a_hundred():
    for lowest in range(100):
        assert max(_labels(_drawn((1.0, float(lowest)), (2.0, 100.0)), "bottom")) == 100


def test_the_line_that_is_marked_is_within_the_plot():
    assert 'class="mark" d="M0 75.0H600"' in _drawn((1.0, 90.0), (2.0, 100.0), line=95.0)
    assert max(_labels(_drawn((1.0, 40.0), (2.0, 50.0), line=95.0), "bottom")) >= 95


def test_joined_points_rise_in_steps_from_the_cheapest_whatever_their_order():
    assert 'd="M0.0 150.0H600.0V0.0H600"' in _drawn((2.0, 100.0), (1.0, 80.0), joined=True)


def test_what_a_point_is_stands_there_escaped():
    assert "<title>&lt;b&gt;</title>" in _drawn((1.0, 1.0), text="<b>")
