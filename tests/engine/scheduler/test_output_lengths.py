"""How long answers become, by class, from the latest ones."""

import pytest

from legato_engine.scheduler.output_lengths import LEAST_ANSWERS, MOST_CLASSES, WINDOW, OutputLengths


@pytest.fixture
def answer(make_client):
    """A request with so many output tokens."""

    def make(tokens, **fields):
        request = make_client((1, 2, 3), max_tokens=5).request(**fields)
        request.tokens += range(tokens)
        return request

    return make


def test_nothing_is_usual_until_enough_answers_ended(answer):
    lengths = OutputLengths()
    for _ in range(LEAST_ANSWERS - 1):
        lengths.ended(answer(7))
    assert lengths.usual(answer(0)) is None
    lengths.ended(answer(7))
    assert lengths.usual(answer(0)) == 7


def test_it_is_the_95th_percentile(answer):
    lengths = OutputLengths()
    for tokens in range(100, 0, -1):
        lengths.ended(answer(tokens))
    assert lengths.usual(answer(0)) == 95


def test_only_the_latest_answers_count(answer):
    lengths = OutputLengths()
    for _ in range(WINDOW):
        lengths.ended(answer(500))
    for _ in range(WINDOW):
        lengths.ended(answer(9))
    assert lengths.usual(answer(0)) == 9


def test_what_ended_before_its_first_token_says_nothing(answer):
    lengths = OutputLengths()
    for _ in range(2 * LEAST_ANSWERS):
        lengths.ended(answer(0))
    assert lengths.usual(answer(0)) is None


@pytest.mark.parametrize("tokens", [0, 3, 8])
def test_what_was_cut_off_does_not_make_answers_seem_short(answer, tokens):
    lengths = OutputLengths()
    for _ in range(LEAST_ANSWERS):
        lengths.ended(answer(8))
    for _ in range(WINDOW):
        lengths.cut_off(answer(tokens))
    lengths.ended(answer(20))
    lengths.ended(answer(20))
    assert lengths.usual(answer(0)) == 20  # two of 22, not of all that were cut off


def test_what_was_cut_off_later_than_answers_end_makes_them_longer(answer):
    lengths = OutputLengths()
    for _ in range(LEAST_ANSWERS):
        lengths.ended(answer(8))
    for _ in range(2):
        lengths.cut_off(answer(30))
    assert lengths.usual(answer(0)) == 30


def test_only_what_was_cut_off_is_known(answer):
    lengths = OutputLengths()
    for _ in range(LEAST_ANSWERS):
        lengths.cut_off(answer(30))
    assert lengths.usual(answer(0)) is None


@pytest.mark.parametrize("other", [{"adapter": "poet"}, {"priority": 1}, {"handed_off": True}, {"room": 4}])
def test_classes_are_apart(answer, other):
    lengths = OutputLengths()
    for _ in range(LEAST_ANSWERS):
        lengths.ended(answer(8))
        lengths.ended(answer(30, **other))
    assert (lengths.usual(answer(0)), lengths.usual(answer(0, **other))) == (8, 30)


def test_a_transfer_is_of_the_class_of_what_it_becomes(answer):
    lengths = OutputLengths()
    for _ in range(LEAST_ANSWERS):
        lengths.ended(answer(8, handed_off=True))
    assert lengths.usual(answer(0, room=4)) == 8


def test_the_classes_that_ended_last_are_known_and_no_more(answer):
    lengths = OutputLengths()
    for priority in (*range(MOST_CLASSES), 0, MOST_CLASSES):
        for _ in range(LEAST_ANSWERS):
            lengths.ended(answer(3, priority=priority))
    known = {priority for priority in range(MOST_CLASSES + 1) if lengths.usual(answer(0, priority=priority))}
    assert known == set(range(MOST_CLASSES + 1)) - {1}
