"""The parts that the time to a first token is made of."""

import pytest

from legato_gateway.relay.records.timing import FirstTokenPhases, RequestTiming

TOKEN = ("first_token", 15.0)
HANDOFF = ("handed_off", 1, 0.5)


@pytest.mark.parametrize(
    ("remote", "happens", "phases"),
    [
        pytest.param(True, [TOKEN, HANDOFF], FirstTokenPhases(2.0, 2.5, 0.5), id="the parts add up to it"),
        pytest.param(True, [HANDOFF, TOKEN], FirstTokenPhases(2.0, 2.5, 0.5), id="a report before the token is kept"),
        pytest.param(True, [TOKEN], None, id="the report of the hand-off has not come"),
        pytest.param(True, [HANDOFF], None, id="nor the token"),
        pytest.param(False, [TOKEN], FirstTokenPhases(2.0, 3.0, None), id="without a hand-off there is none to tell"),
        pytest.param(
            True,
            # late news of the first one, and of the second one twice
            [HANDOFF, ("placed", 2, False), ("started", 1, 13.0), ("started", 2, 14.0), ("started", 2, 14.5), TOKEN],
            FirstTokenPhases(4.0, 1.0, None),
            id="an attempt without a token was queue time",
        ),
        pytest.param(True, [TOKEN, ("handed_off", 0, 0.5)], None, id="a hand-off of an earlier attempt"),
        pytest.param(True, [TOKEN, ("handed_off", 2, 0.5)], None, id="a hand-off of a later attempt"),
        pytest.param(True, [TOKEN, ("placed", 2, False)], None, id="placed after the first token"),
        pytest.param(
            True, [TOKEN, ("placed", 2, False), HANDOFF], FirstTokenPhases(2.0, 2.5, 0.5), id="which changes nothing"
        ),
        # the hand-off was timed by another clock
        pytest.param(True, [TOKEN, ("handed_off", 1, 99.0)], FirstTokenPhases(2.0, 0.0, 3.0), id="none is negative"),
    ],
)
def test_the_parts_of_the_time_to_the_first_token_are_told_once(remote, happens, phases):
    """It came at 10, and its prefill started at 12."""
    made = RequestTiming(10.0)
    made.placed(1, remote)
    made.started(1, 12.0)
    for name, *values in happens:
        if name == "first_token":
            (made.first_token,) = values
        else:
            getattr(made, name)(*values)
    assert made.phases() == phases
    assert phases is None or made.phases() is None
