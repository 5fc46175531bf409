"""The budget of prompt tokens of a step."""

from math import inf

import pytest

from legato_engine.scheduler.planning.chunk_budget import LATE_CHUNK, LEAST_CHUNK, MULTIPLE, ChunkBudget, pairs


def cost(budget, count, start):
    return budget.per_token * count + budget.per_pair * pairs(count, start)


def test_without_a_time_only_tokens_bound_it():
    budget = ChunkBudget(100)
    assert budget.count(5000, 60) == 60
    budget.spend(60, 5000)
    assert (budget.count(0, 60), budget.exhausted) == (40, False)
    budget.spend(40, 0)
    assert (budget.count(0, 60), budget.exhausted) == (0, True)


@pytest.mark.parametrize("start", [0, 100, 4000])
@pytest.mark.parametrize(("per_token", "per_pair"), [(1e-3, 0.0), (1e-3, 1e-6), (0.0, 2e-6)])
def test_a_chunk_takes_the_time_there_is_and_no_more(start, per_token, per_pair):
    budget = ChunkBudget(10_000, 1.0, 0.0, per_token, per_pair)
    count = budget.count(start, 10_000)
    assert count % MULTIPLE == 0
    assert cost(budget, count, start) <= 1.0 < cost(budget, count + MULTIPLE, start)


def test_prompts_share_the_time():
    budget = ChunkBudget(1000, 0.1, per_token=1e-3)
    budget.spend(60, 0)
    assert budget.count(0, 1000) == 32
    budget.spend(32, 0)
    assert (budget.count(0, 1000), budget.exhausted) == (0, True)


@pytest.mark.parametrize(
    ("decoding", "least"), [(0.09, LEAST_CHUNK), (0.1, LEAST_CHUNK), (0.141, LEAST_CHUNK), (0.143, LATE_CHUNK)]
)
def test_one_prompt_advances_however_late_the_step_is(decoding, least):
    """By the least chunk where the step is then late by no more than it may be."""
    budget = ChunkBudget(1000, 0.1 - decoding, decoding, 1e-3)
    assert (budget.count(0, 1000), budget.exhausted) == (least, False)
    budget.spend(least, 0)
    assert (budget.count(0, 1000), budget.exhausted) == (0, True)


def test_a_late_step_takes_at_most_twice_as_long_as_with_the_least_chunk():
    for decoding, per_token, count in ((0.2, 0.02, 24), (0.02, 0.02, 16), (0.02, 0.2, 16), (0.2, 0.01, LATE_CHUNK)):
        budget = ChunkBudget(1000, 0.1 - decoding, decoding, per_token)
        assert budget.count(0, 1000) == count
        assert decoding + count * per_token <= 2 * (decoding + LEAST_CHUNK * per_token)


def test_the_context_of_a_prompt_and_logprobs_make_its_least_chunk_late():
    budget = ChunkBudget(1000, -0.01, 0.11, 1e-3, 1e-6, 1e-2)
    assert budget.count(0, 1000) == LEAST_CHUNK
    assert budget.count(8000, 1000) > LEAST_CHUNK
    assert budget.count(0, 1000, scoring=True) > LEAST_CHUNK


def test_time_that_is_left_counts_where_it_is_enough_for_more_than_the_least():
    def count(seconds, remaining=1000):
        return ChunkBudget(1000, seconds, per_token=1e-3).count(0, remaining)

    assert [count(0.1), count(0.017), count(0.015), count(0.1, 20)] == [96, MULTIPLE, LEAST_CHUNK, 20]


@pytest.mark.parametrize(
    ("budget", "start", "remaining", "count"),
    [
        (ChunkBudget(5, 0.0, per_token=1e-3), 0, 1000, 5),  # less than the least
        (ChunkBudget(1000, 0.0, per_token=1e-3), 0, 5, 5),
        (ChunkBudget(100, 0.5), 50, 1000, 100),  # prompts that were measured to cost nothing
        (ChunkBudget(100, inf), 50, 1000, 100),
        (ChunkBudget(1000, 1.0, per_token=1e-3), 0, 517, 517),  # the end of a prompt need not be a multiple
    ],
)
def test_a_chunk_has_no_more_tokens_than_are_left_in_the_step_or_the_prompt(budget, start, remaining, count):
    assert budget.count(start, remaining) == count
