"""The table of what follows a failure."""

import pytest

from legato_gateway.errors import DeadlineExceeded, NotComputable, WorkerFailed
from legato_gateway.relay.retry import Again, RetryPolicy, after_failure, delay, migration_delay
from legato_protocol.wire.stream import Failed


def _failed(code, retry=True, part="decode"):
    return Failed("id", 1, code, "why", part, retry)


@pytest.mark.parametrize(
    ("code", "failures", "policy", "answer"),
    [
        # the first failure costs no time
        *(
            (code, 1, {}, Again(0.0))
            for code in ("overloaded", "draining", "stale", "peer_lost", "internal", "transfer")
        ),
        # a missing place is retried until the deadline
        *((code, 1000, {}, Again(1.0)) for code in ("overloaded", "draining", "stale", "peer_lost")),
        # faults are retried for a number of times
        *((code, 8, {"max_failures": 8}, Again(1.0)) for code in ("internal", "transfer")),
        # failed hand-offs follow their policy
        *(
            (code, 1, {"on_transfer_failure": "Recompute"}, Again(0.0, recompute=True))
            for code in ("transfer", "peer_lost")
        ),
    ],
)
def test_what_may_help_is_tried_again(code, failures, policy, answer):
    assert after_failure(_failed(code), failures, 0, RetryPolicy(**policy)) == answer


@pytest.mark.parametrize(
    ("failed", "failures", "faults", "policy", "kind", "message"),
    [
        (_failed("internal"), 9, 0, {"max_failures": 8}, WorkerFailed, None),
        (_failed("transfer", part="transfer"), 9, 0, {"max_failures": 8}, WorkerFailed, None),
        (_failed("transfer"), 1, 0, {"on_transfer_failure": "Fail"}, WorkerFailed, None),
        (_failed("peer_lost"), 1, 0, {"on_transfer_failure": "Fail"}, WorkerFailed, None),
        (_failed("invalid", retry=False), 1, 0, {}, WorkerFailed, "decode: why (invalid)"),
        (_failed("deadline", part="prefill"), 1, 2, {}, DeadlineExceeded, "its time ran out: why"),
        (
            _failed("faulted", part="prefill"),
            1,
            2,
            {},
            NotComputable,
            "why, after 2 attempts that could not sample a token",
        ),
    ],
)
def test_what_does_not_help_ends_the_request_with_the_part_and_the_reason(
    failed, failures, faults, policy, kind, message
):
    error = after_failure(failed, failures, faults, RetryPolicy(**policy)).error
    assert (type(error), error.part) == (kind, failed.part)
    assert message is None or error.message == message


def test_pauses_double_up_to_a_limit():
    policy = RetryPolicy(first_delay=0.1, first_migration_delay=0.2, most_delay=1.0)
    assert [delay(n, policy) for n in range(1, 8)] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert [migration_delay(n, policy) for n in range(1, 6)] == [0.2, 0.4, 0.8, 1.0, 1.0]
