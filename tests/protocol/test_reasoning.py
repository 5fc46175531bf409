"""Finds the reasoning in an output, by its tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato_protocol.sampling.reasoning import ReasoningSpan, ReasoningTokens

OPEN, CLOSE, SPACE = 1, 2, 3


@pytest.mark.parametrize(
    ("begun", "output", "inside", "over", "count", "behind"),
    [
        (True, [], True, False, 0, 0),
        (True, [7, 8], True, False, 2, 0),
        (True, [7, CLOSE, 8, OPEN, 9, CLOSE], False, True, 1, 2),
        (True, [OPEN, 7, CLOSE], False, True, 1, 3),
        (True, [CLOSE], False, True, 0, 1),
        (False, [], False, False, 0, 0),
        (False, [SPACE], False, False, 0, 0),
        (False, [SPACE, OPEN, SPACE, 7, CLOSE, 7], False, True, 2, 5),
        (False, [7, OPEN, 7, CLOSE], False, True, 0, 0),
        (False, [CLOSE, 7], False, True, 0, 0),
    ],
)
def test_spans(begun, output, inside, over, count, behind):
    span = ReasoningSpan(ReasoningTokens(OPEN, CLOSE, begun, (SPACE,)))
    span.follow(output)
    assert (span.inside, span.over, span.count, span.behind) == (inside, over, count, behind)


@given(st.booleans(), st.lists(st.integers(1, 5)), st.integers(0, 20))
def test_a_span_is_the_same_in_pieces(begun, output, cut):
    marks = ReasoningTokens(OPEN, CLOSE, begun, (SPACE,))
    whole, pieces = ReasoningSpan(marks), ReasoningSpan(marks)
    whole.follow(output)
    pieces.follow(output[:cut])
    pieces.follow(output[cut:])
    assert (whole.inside, whole.over, whole.count, whole.behind) == (
        pieces.inside,
        pieces.over,
        pieces.count,
        pieces.behind,
    )
