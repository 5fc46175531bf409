"""The most blocks that growing sequences need at one time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_engine.scheduler.queueing.growth_forecast import NONE, Growth, GrowthForecast, rounded


@st.composite
def growths(draw):
    blocks = draw(st.integers(0, 10))
    return Growth(draw(st.integers(1, 90)), blocks, draw(st.sampled_from((0, 30, -blocks))))


@settings(deadline=None)
@given(st.lists(growths(), max_size=12), growths(), st.booleans())
def test_it_is_the_need_at_the_end_with_the_most(sequences, other, late):
    forecast = GrowthForecast(sequences[1:] if late else sequences)
    for each in sequences[:1] if late else ():
        forecast.peak()
        forecast.add(each)
    every = [(each, rounded(each.steps)) for each in (*sequences, other)]
    most = max(sum(each.at(step, end) for each, end in every) for _, step in every)
    assert forecast.peak(other) == max(0, int(most + 1e-6))
    assert forecast.total == sum(each.blocks for each in sequences)


@pytest.mark.parametrize(
    ("steps", "expected"), [(1, 1), (15, 15), (16, 16), (17, 18), (32, 32), (33, 36), (1000, 1024), (1023, 1024)]
)
def test_ends_are_rounded_up_by_less_than_an_eighth(steps, expected):
    assert rounded(steps) == expected


@pytest.mark.parametrize(
    ("sequences", "other", "expected"),
    [
        ([], NONE, 0),
        ([Growth(10, 3)] * 4, NONE, 12),  # all end at the same time
        ([Growth(10, 2, 8), Growth(20, 5)], NONE, 5),  # 2 + 3 before the first end, and 5 - 8 before the second
        ([Growth(10, 2, -2), Growth(20, 5)], NONE, 7),  # the first does not end
        ([Growth(8, 1, 2), Growth(16, 4, 0)], Growth(12, 3), 5),  # 1 + 2.5 + 2.3 before the first end, then 3.2 + 3 - 2
        ([Growth(100 * n, 6 * n, 60 - 6 * n) for n in range(1, 10)], NONE, 62),  # before the first of 9; in all 270
    ],
)
def test_sequences_that_end_make_room_for_others(sequences, other, expected):
    assert GrowthForecast(sequences).peak(other) == expected
