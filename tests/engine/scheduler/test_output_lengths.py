"""Usual lengths of answers, by class, from the latest ones."""

import pytest
from scheduled_worker import ask

from legato_engine.scheduler.queueing.output_lengths import LEAST_ANSWERS, MOST_CLASSES, WINDOW, OutputLengthEstimator


def answer(tokens=0, **fields):
    request = ask(3, max_tokens=5).request(**fields)
    request.tokens += range(tokens)
    return request


@pytest.fixture
def lengths():
    return OutputLengthEstimator()


def repeat(record, count, tokens, **fields):
    for _ in range(count):
        record(answer(tokens, **fields))


def test_nothing_is_usual_until_enough_answers_ended(lengths):
    repeat(lengths.add_ended, LEAST_ANSWERS - 1, 7)
    assert lengths.usual(answer()) is None
    lengths.add_ended(answer(7))
    assert lengths.usual(answer()) == 7


def test_it_is_the_95th_percentile(lengths):
    for tokens in range(100, 0, -1):
        lengths.add_ended(answer(tokens))
    assert lengths.usual(answer()) == 95


def test_only_the_latest_answers_count(lengths):
    repeat(lengths.add_ended, WINDOW, 500)
    repeat(lengths.add_ended, WINDOW, 9)
    assert lengths.usual(answer()) == 9


@pytest.mark.parametrize(
    ("ended", "tokens"), [(True, 0), (False, 30)], ids=["ended before the first token", "only cut off"]
)
def test_answers_that_do_not_count(lengths, ended, tokens):
    repeat(lengths.add_ended if ended else lengths.add_cut_off, 2 * LEAST_ANSWERS, tokens)
    assert lengths.usual(answer()) is None


@pytest.mark.parametrize(
    ("count", "tokens", "longer", "usual"),
    [*((WINDOW, tokens, 2, 20) for tokens in (0, 3, 8)), (2, 30, 0, 30)],  # 20: two of 22, not of all that were cut off
)
def test_only_answers_that_were_cut_off_later_than_others_end_count(lengths, count, tokens, longer, usual):
    repeat(lengths.add_ended, LEAST_ANSWERS, 8)
    repeat(lengths.add_cut_off, count, tokens)
    repeat(lengths.add_ended, longer, 20)
    assert lengths.usual(answer()) == usual


@pytest.mark.parametrize("other", [{"adapter": "poet"}, {"priority": 1}, {"handed_off": True}, {"room": 4}])
def test_classes_are_apart_and_a_transfer_is_of_that_of_what_it_becomes(lengths, other):
    repeat(lengths.add_ended, LEAST_ANSWERS, 8)
    repeat(lengths.add_ended, LEAST_ANSWERS, 30, **other)
    assert (lengths.usual(answer()), lengths.usual(answer(**other))) == (8, 30)
    assert (lengths.usual(answer(room=4)) == 30) is (other.keys() <= {"handed_off", "room"})


def test_the_classes_that_ended_last_are_known_and_no_more(lengths):
    for priority in (*range(MOST_CLASSES), 0, MOST_CLASSES):
        repeat(lengths.add_ended, LEAST_ANSWERS, 3, priority=priority)
    known = {priority for priority in range(MOST_CLASSES + 1) if lengths.usual(answer(priority=priority))}
    assert known == set(range(MOST_CLASSES + 1)) - {1}
