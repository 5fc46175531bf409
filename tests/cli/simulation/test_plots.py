"""Plots: axes that can be read, and no peak lost."""

import re

import pytest
from simulation_results import sample

from legato_cli.simulation.plots import Line, figure, number


def drawn(values, look="one", steps=False, most=None) -> str:
    timeline = [sample(10.0 * i, queue_tokens=value) for i, value in enumerate(values)]
    return figure("Queue", "tokens", [Line("one", timeline, lambda s: s.queue_tokens, look, steps)], most)


def y_labels(svg: str) -> list[str]:
    return re.findall(r'bottom:\d+%">([^<]*)<', svg)


@pytest.mark.parametrize(
    ("most", "labels"),
    [(0, ["0", "0.5", "1"]), (1, ["0", "0.5", "1"]), (35_000, ["0", "20k", "40k"]), (801, ["0", "500", "1k"])],
)
def test_vertical_axis_ends_at_a_round_number(most, labels):
    assert y_labels(drawn([0, most])) == labels


def test_vertical_axis_can_be_fixed():
    assert y_labels(drawn([0, 3], most=100)) == ["0", "50", "100"]


def test_horizontal_axis_names_its_unit():
    assert "0 min" in drawn([1] * 100)
    assert "0 h" in drawn([1] * 2000)
    assert "0 s" in drawn([1] * 10)


def test_peak_of_a_long_line_is_kept():
    """1,000 samples become at most 300 points; the only high one is among them."""
    path = re.search(r' d="([^"]*)"', drawn([0] * 501 + [1000] + [0] * 498))
    assert path
    assert len(re.findall("[ML]", path[1])) <= 300
    assert re.search(r"L[\d.]+ 0\.0", path[1])


def test_steps_hold_their_value():
    assert re.search(r'd="M0\.0 150\.0H600\.0V0\.0"', drawn([0, 1], steps=True))


def test_area_is_closed():
    assert re.search(r'd="M[^"]*Z"', drawn([0, 1], look="one area"))


def test_nothing_to_draw_is_a_plot_too():
    assert "<path" not in drawn([])


def test_text_is_escaped():
    assert "<b>&lt;b&gt;" in figure("<b>", "a&b", [])


@pytest.mark.parametrize(("value", "text"), [(0.25, "0.25"), (999, "999"), (1000, "1k"), (1_250_000, "1.25M")])
def test_numbers_are_short(value, text):
    assert number(value) == text
