"""What follows a failure, as a table."""

import pytest

from legato_gateway.errors import DeadlineExceeded, WorkerFailed
from legato_gateway.relay.retry import Again, End, RetryPolicy, after_failure, delay, migration_delay
from legato_protocol.stream import Failed


def _failed(code, retry=True, part="decode"):
    return Failed("id", 1, code, "why", part, retry)


@pytest.mark.parametrize("code", ["overloaded", "draining", "stale", "peer_lost", "internal", "transfer"])
def test_the_first_failure_costs_no_time(code):
    assert after_failure(_failed(code), 1, 0, RetryPolicy()) == Again(0.0)


@pytest.mark.parametrize("code", ["overloaded", "draining", "stale", "peer_lost"])
def test_want_of_a_place_is_retried_until_the_deadline(code):
    assert after_failure(_failed(code), 1000, 0, RetryPolicy()) == Again(1.0)


@pytest.mark.parametrize("code", ["internal", "transfer"])
def test_faults_are_retried_so_many_times(code):
    assert isinstance(after_failure(_failed(code), 8, 0, RetryPolicy(max_failures=8)), Again)
    answer = after_failure(_failed(code, part="transfer"), 9, 0, RetryPolicy(max_failures=8))
    assert isinstance(answer, End)
    assert answer.error.part == "transfer"


@pytest.mark.parametrize("code", ["transfer", "peer_lost"])
def test_failed_hand_offs_follow_their_policy(code):
    assert after_failure(_failed(code), 1, 0, RetryPolicy("Recompute")) == Again(0.0, recompute=True)
    assert isinstance(after_failure(_failed(code), 1, 0, RetryPolicy("Fail")).error, WorkerFailed)


def test_permanent_failures_and_deadlines_end_the_request():
    assert isinstance(after_failure(_failed("invalid", retry=False), 1, 0, RetryPolicy()).error, WorkerFailed)
    assert isinstance(after_failure(_failed("deadline", part="prefill"), 1, 0, RetryPolicy()).error, DeadlineExceeded)


def test_an_error_tells_where_and_why():
    assert after_failure(_failed("invalid", retry=False), 1, 0, RetryPolicy()).error.message == "decode: why (invalid)"
    for code, words in (
        ("deadline", "its time ran out: why"),
        ("faulted", "why, after 2 attempts that could not sample a token"),
    ):
        error = after_failure(_failed(code, part="prefill"), 1, 2, RetryPolicy()).error
        assert (error.message, error.part) == (words, "prefill")


def test_pauses_double_up_to_a_limit():
    policy = RetryPolicy(first_delay=0.1, first_migration_delay=0.2, most_delay=1.0)
    assert [delay(n, policy) for n in range(1, 8)] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert [migration_delay(n, policy) for n in range(1, 6)] == [0.2, 0.4, 0.8, 1.0, 1.0]
