"""Threads of a step have a core each, where there are as many cores as threads, and nothing else is bound."""

import os

import bound_cores
import pytest
import uninterpreted

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="one core")


def test_as_many_threads_as_cores_have_one_each():
    first, second = CORES[:2]
    computing, others, later, mine, started = uninterpreted.call(bound_cores.bind, [first, second], 2, [])
    assert computing == [[first], [second]]
    assert all(each == [first, second] for each in others)
    assert later == [[first], [first, second]], "until it is released"
    assert mine
    assert not started, "threads of torch would be bound as the one that starts them"


@pytest.mark.parametrize(("threads", "more"), [(1, []), (2, [1000])])
def test_otherwise_the_choice_is_the_systems(threads, more):
    computing, others, later, _, _ = uninterpreted.call(bound_cores.bind, CORES[:2], threads, more)
    assert len(computing) == threads
    assert all(each == CORES[:2] for each in computing + others + later)
