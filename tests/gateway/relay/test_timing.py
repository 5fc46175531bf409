"""What the time to a first token is said to have gone to."""

import pytest

from legato_gateway.relay.timing import FirstTokenPhases, RequestTiming


def timing(remote: bool = True) -> RequestTiming:
    """One that came at 10 and whose prefill began at 12."""
    made = RequestTiming(10.0)
    made.placed(1, remote)
    made.began(1, 12.0)
    return made


def test_the_parts_add_up_to_the_time_to_the_first_token():
    made = timing()
    made.first_token = 15.0
    assert made.phases() is None, "the report of the hand-off has not come"
    made.handed_off(1, 0.5)
    assert made.phases() == FirstTokenPhases(queue=2.0, prefill=2.5, handoff=0.5)


def test_a_report_before_the_token_is_kept():
    made = timing()
    made.handed_off(1, 0.5)
    assert made.phases() is None
    made.first_token = 15.0
    assert made.phases() == FirstTokenPhases(2.0, 2.5, 0.5)


def test_without_a_hand_off_there_is_none_to_tell():
    made = timing(remote=False)
    made.first_token = 15.0
    assert made.phases() == FirstTokenPhases(2.0, 3.0, None)


def test_they_are_told_once():
    made = timing(remote=False)
    made.first_token = 15.0
    assert made.phases() is not None
    assert made.phases() is None


def test_an_attempt_without_a_token_was_queue_time():
    made = timing()
    made.handed_off(1, 0.5)
    made.placed(2, False)
    made.began(1, 13.0)  # late news of the first one
    made.began(2, 14.0)
    made.began(2, 14.5)
    made.first_token = 15.0
    assert made.phases() == FirstTokenPhases(4.0, 1.0, None)


@pytest.mark.parametrize("attempt", [0, 2])
def test_a_hand_off_of_another_attempt_does_not_count(attempt):
    made = timing()
    made.first_token = 15.0
    made.handed_off(attempt, 0.5)
    assert made.phases() is None


def test_what_is_placed_after_the_first_token_changes_nothing():
    made = timing()
    made.first_token = 15.0
    made.placed(2, False)
    assert made.phases() is None
    made.handed_off(1, 0.5)
    assert made.phases() == FirstTokenPhases(2.0, 2.5, 0.5)


def test_no_part_is_negative():
    """The hand-off was timed by another clock."""
    made = timing()
    made.first_token = 15.0
    made.handed_off(1, 99.0)
    assert made.phases() == FirstTokenPhases(2.0, 0.0, 3.0)
