"""Plots over time and scatter plots: axes that can be read, no peak lost, and points where their figures say."""

import re

import pytest
from simulation_results import sample

from legato_simulator.report import plots, scatter
from legato_simulator.report.plots import Line
from legato_simulator.report.scatter import Points


def _drawn(values, look="one", steps=False, most=None):
    timeline = [sample(10.0 * i, queue_tokens=value) for i, value in enumerate(values)]
    return plots.figure("Queue", "tokens", [Line("one", timeline, lambda s: s.queue_tokens, look, steps)], most)


@pytest.mark.parametrize(
    ("values", "most", "labels"),
    [
        ([0, 0], None, ["0", "0.5", "1"]),
        ([0, 1], None, ["0", "0.5", "1"]),
        ([0, 35_000], None, ["0", "20k", "40k"]),
        ([0, 801], None, ["0", "500", "1k"]),
        ([0, 3], 100, ["0", "50", "100"]),
    ],
)
def test_a_vertical_axis_ends_at_a_round_number_or_where_it_is_fixed(values, most, labels):
    assert re.findall(r'bottom:\d+%">([^<]*)<', _drawn(values, most=most)) == labels


@pytest.mark.parametrize(("samples", "zero"), [(10, "0 s"), (100, "0 min"), (2000, "0 h")])
def test_a_horizontal_axis_names_its_unit(samples, zero):
    assert zero in _drawn([1] * samples)


def test_the_peak_of_a_long_line_is_kept():
    """1,000 samples become at most 300 points; the only high one is among them."""
    path = re.search(r' d="([^"]*)"', _drawn([0] * 501 + [1000] + [0] * 498))[1]
    assert len(re.findall("[ML]", path)) <= 300
    assert re.search(r"L[\d.]+ 0\.0", path)


def test_steps_hold_their_value_and_an_area_is_closed():
    assert re.search(r'd="M0\.0 150\.0H600\.0V0\.0"', _drawn([0, 1], steps=True))
    assert re.search(r'd="M[^"]*Z"', _drawn([0, 1], look="one area"))


def test_nothing_to_draw_is_a_plot_too_and_its_text_is_escaped():
    assert "<path" not in _drawn([])
    assert "<b>&lt;b&gt;" in plots.figure("<b>", "a&b", [])


def _scattered(*points, line=None, joined=False, text="it"):
    tried = Points("tried", "one", [(x, y, text) for x, y in points], joined)
    return scatter.figure("Attainment", "%", "all", [tried], line)


def _labels(svg, edge):
    return [float(value) for value in re.findall(rf'{edge}:[\d.]+%">([\d.-]+) ?<', svg)]


def _dots(svg):
    return [(float(x), float(y)) for x, y in re.findall(r'class="dot one" d="M(-?[\d.]+) (-?[\d.]+)h0"', svg)]


def test_points_lie_where_their_figures_say():
    svg = _scattered((10.0, 80.0), (12.0, 90.0), (18.0, 100.0))
    assert (_labels(svg, "left"), _labels(svg, "bottom")) == ([10, 12, 14, 16, 18], [80, 85, 90, 95, 100])
    assert _dots(svg) == [(0.0, 150.0), (150.0, 75.0), (600.0, 0.0)]


@pytest.mark.parametrize(
    "ends", [(2.14, 2.33), (95.0, 100.0), (0.0, 0.0), (3.0, 3.0), (0.001, 12_345.0), (57.0, 100.0)]
)
def test_an_axis_goes_from_one_round_number_to_another_around_all_values(ends):
    svg = _scattered(*((value, value) for value in ends))
    assert all(0 <= x <= 600 and 0 <= y <= 150 for x, y in _dots(svg))
    assert 2 <= svg.count('style="left:') <= 7
    assert 'style="left:0.00%"' in svg
    assert 'style="left:100.00%"' in svg


def test_a_percentage_never_goes_beyond_a_hundred():
    for lowest in range(100):
        assert max(_labels(_scattered((1.0, float(lowest)), (2.0, 100.0)), "bottom")) == 100


def test_the_line_that_is_marked_is_within_the_plot():
    assert 'class="mark" d="M0 75.0H600"' in _scattered((1.0, 90.0), (2.0, 100.0), line=95.0)
    assert max(_labels(_scattered((1.0, 40.0), (2.0, 50.0), line=95.0), "bottom")) >= 95


def test_joined_points_rise_in_steps_from_the_cheapest_whatever_their_order():
    assert 'd="M0.0 150.0H600.0V0.0H600"' in _scattered((2.0, 100.0), (1.0, 80.0), joined=True)


def test_the_title_of_a_point_is_escaped():
    assert "<title>&lt;b&gt;</title>" in _scattered((1.0, 1.0), text="<b>")
