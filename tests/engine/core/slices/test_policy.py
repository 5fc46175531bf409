"""The order of time slices, and the time that their steps may take."""

from dataclasses import replace
from math import inf

import pytest

from legato_engine.core.slices.policy import STALE, SliceClaim, SliceEntry, SliceState, gives_way, next_workers, seconds

NOW = 100.0
IDLE, WAITING, HOLDING = SliceState.IDLE, SliceState.WAITING, SliceState.HOLDING


def entries(*given):
    """Entries 0, 1 … of (state, threads, seconds since its claim, seconds until its next step is due, when it preempts
    prompts, and prompts of its own)."""
    return [
        SliceEntry(number, state, threads, NOW - since, SliceClaim(NOW + due, NOW + due + 0.01, *pre))
        for number, (state, threads, since, due, *pre) in enumerate(given)
    ]


@pytest.mark.parametrize(
    ("given", "cores", "numbers"),
    [
        ([], 2, []),
        ([(IDLE, 2, 0, inf)], 2, []),
        ([(WAITING, 2, 0, inf)], 2, [0]),
        ([(HOLDING, 2, 0, inf), (WAITING, 2, 0, inf)], 2, []),
        ([(WAITING, 2, 0.1, inf), (WAITING, 2, 0.2, inf)], 2, [1]),  # prompts in order of their claims
        ([(WAITING, 2, 0.2, 0.05), (WAITING, 2, 0.1, inf)], 2, [1]),  # a prompt before tokens that can wait
        ([(WAITING, 2, 0.2, -0.15), (WAITING, 2, 0.1, inf)], 2, [0]),  # tokens that were due before the prompt's claim
        ([(WAITING, 2, 0.0, -9.0), (WAITING, 2, 0.1, inf)], 2, [1]),  # tokens that are late do not starve prompts
        ([(WAITING, 2, 0.1, 0.02), (WAITING, 2, 0.2, 0.01)], 2, [1]),  # the earlier deadline
        ([(WAITING, 1, 0.1, inf), (WAITING, 1, 0.2, inf), (WAITING, 1, 0.0, inf)], 2, [1, 0]),
        ([(HOLDING, 1, 0, inf), (WAITING, 2, 0.2, inf), (WAITING, 1, 0.1, inf)], 2, []),  # none passes the first
        ([(HOLDING, 1, 0, inf), (WAITING, 1, 0.2, inf), (WAITING, 2, 0.1, inf)], 2, [1]),
        ([(HOLDING, 2, 0, inf), (WAITING, 2, 0, 0.05, NOW)], 2, [1]),  # it preempts a prompt …
        ([(HOLDING, 2, 0, inf), (WAITING, 2, 0, 0.05, NOW + 0.01)], 2, []),  # … after a pause
        ([(HOLDING, 2, 0, inf), (WAITING, 2, 0.2, inf), (WAITING, 2, 0, 0.05, NOW)], 2, [2]),  # others wait, too
        ([(HOLDING, 1, 0, inf), (WAITING, 2, 0.2, inf), (WAITING, 1, 0, 0.05)], 2, []),  # no free core passes them
        ([(HOLDING, 2, 0, inf), (WAITING, 2, 0, 0.02, NOW + 0.01), (WAITING, 2, 0, 0.05, NOW)], 2, []),  # nor tokens
        ([(HOLDING, 2, 0, inf, inf, 1), (WAITING, 2, 0, 0.05, NOW)], 2, [1]),
        ([(HOLDING, 2, 0, inf, inf, 2), (WAITING, 2, 0, 0.05, NOW)], 2, []),  # several prompts: once it is due …
        ([(HOLDING, 2, 0, inf, inf, 2), (WAITING, 2, 0, 0.0, NOW)], 2, [1]),
        ([(HOLDING, 2, 0, inf, inf, 2), (WAITING, 2, 0, -0.1, NOW + 0.01)], 2, []),  # … and after the pause
        ([(HOLDING, 2, 0, 0.05), (WAITING, 2, 0, 0.05, NOW)], 2, []),  # tokens are not preempted
        ([(HOLDING, 2, 0, inf), (HOLDING, 2, 0, 0.05), (WAITING, 2, 0, 0.05, NOW)], 2, []),
        ([(HOLDING, 2, 0, inf), (HOLDING, 2, 0, 0.05), (WAITING, 2, 0, inf)], 2, []),
    ],
)
def test_slices_begin_in_order_of_deadlines_while_their_threads_have_cores(given, cores, numbers):
    assert next_workers(entries(*given), cores, NOW) == numbers


@pytest.mark.parametrize(("whose", "numbers"), [(1, [1]), (2, [])])
def test_prompts_go_on_after_tokens_of_third_workers(whose, numbers):
    given = entries((HOLDING, 2, 0, inf), (WAITING, 2, 0, 0.05, NOW), (IDLE, 2, 0, 0.09))
    given[whose] = replace(given[whose], rest=NOW + 0.01)
    assert next_workers(given, 2, NOW) == numbers


@pytest.mark.parametrize(
    ("others", "own", "limit"),
    [
        ([], SliceClaim(), inf),
        ([(WAITING, 2, 0, 0.08)], SliceClaim(), inf),  # a prompt yields
        ([(WAITING, 2, 0, inf)], SliceClaim(NOW, NOW + 0.1), 0.1),  # its own tokens
        ([(WAITING, 2, 0, 0.08), (IDLE, 2, 0, 0.06)], SliceClaim(NOW, NOW + 0.1), 0.06),
        ([(WAITING, 2, 0, -0.08)], SliceClaim(NOW, NOW + 0.1), -0.08),  # others are late
        ([(IDLE, 2, 0, -2 * STALE)], SliceClaim(NOW, NOW + 0.1), 0.1),  # it has ended, or decodes no longer
        ([(IDLE, 2, 0, -STALE / 2)], SliceClaim(NOW, NOW + 0.1), -STALE / 2),
    ],
)
def test_a_step_ends_before_tokens_of_any_worker_are_late(others, own, limit):
    given = entries(*others)
    given.append(SliceEntry(len(given), HOLDING, 2, NOW, own))
    assert seconds(len(others), given, NOW) == pytest.approx(limit)


@pytest.mark.parametrize(
    ("other", "own", "stops"),
    [
        ((HOLDING, 2, 0, 0.05), (HOLDING, 2, 0, inf), True),
        ((WAITING, 2, 0, 0.05), (HOLDING, 2, 0, inf), False),  # its step has not begun
        ((HOLDING, 2, 0, inf), (HOLDING, 2, 0, inf), False),  # it only computes prompts, too
        ((HOLDING, 2, 0, 0.05), (HOLDING, 2, 0, 0.05), False),  # this step has tokens itself
        ((HOLDING, 2, 0, 0.05), (IDLE, 2, 0, inf), False),  # others no longer wait for this step
    ],
)
def test_a_step_stops_for_tokens_if_it_only_computes_prompts(other, own, stops):
    assert gives_way(1, entries(other, own)) is stops
