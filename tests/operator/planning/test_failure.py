"""Workers that cannot come up, and those that still may."""

import dataclasses

import pytest

from legato_operator.api import conditions
from legato_operator.observing.observed import Pod
from legato_operator.planning import failure

STARTING = Pod("demo-decode-1", "uid", "decode", "new", "1", False, False, message="loading the model", waiting=20.0)


FAILED, LATE = conditions.ROLLOUT_FAILED, conditions.PROGRESS_DEADLINE_EXCEEDED
BLOCKED = {"blocked": "ErrImagePull: connection refused"}


@pytest.mark.parametrize(
    ("pod", "reason", "message"),
    [
        ({"refused": "weights are truncated"}, FAILED, "weights are truncated"),
        (BLOCKED | {"blocked_for": 301.0}, FAILED, "ErrImagePull: connection refused"),
        ({"blocked": "InvalidImageName: UPPER", "doomed": True}, FAILED, "InvalidImageName: UPPER"),
        ({"restarts": 3, "ended": "exited with code 1: x"}, FAILED, "keeps crashing: exited with code 1: x"),
        ({"waiting": 61.0}, LATE, "not ready within 1m: loading the model"),
        (BLOCKED | {"blocked_for": 61.0, "waiting": 61.0}, LATE, "not ready within 1m: loading the model"),
        ({}, None, ""),
        ({"restarts": 2, "ended": "worker exited with code 1"}, None, ""),
        ({"waiting": 60.0}, None, ""),
        (BLOCKED | {"blocked_for": 5.0}, None, ""),
        (BLOCKED | {"blocked_for": 300.0}, None, ""),
    ],
)
def test_worker_that_cannot_come_up_says_why_and_others_have_their_time(pod, reason, message):
    """A ready one has nothing to say, whatever happened before."""
    failing = dataclasses.replace(STARTING, **pod)
    failed = failure.Failure(reason, f"demo-decode-1: {message}") if reason else None
    assert failure.find([STARTING, failing], 60.0) == failed
    assert failure.find([dataclasses.replace(failing, ready=True)], 60.0) is None


@pytest.mark.parametrize(
    ("pod", "again"),
    [
        (BLOCKED | {"blocked_for": 300.0}, True),
        (BLOCKED | {"blocked_for": 301.0}, False),
        (BLOCKED | {"blocked_for": 5.0, "doomed": True}, False),
        (BLOCKED | {"blocked_for": 5.0, "ready": True}, False),
        ({}, False),
    ],
)
def test_kubelet_tries_again_for_as_long_as_that_is_not_a_failure(pod, again):
    assert failure.tries_again(dataclasses.replace(STARTING, **pod)) is again


@pytest.mark.parametrize("history", [{"restarts": 3, "ended": "exited"}, {"refused": "no memory"}])
def test_moment_without_readiness_says_nothing_of_a_worker_that_came_up(history):
    """Whatever it went through before. It is another matter where it never was ready, or is not for long."""
    blinking = dataclasses.replace(STARTING, **history, was_ready=True, waiting=30.0)
    assert failure.find([blinking], 60.0) is None
    for change in ({"was_ready": False}, {"waiting": 31.0}):
        assert failure.find([dataclasses.replace(blinking, **change)], 60.0)


def test_a_ready_worker_that_no_gateway_reaches_has_as_long_as_one_that_starts():
    ready = dataclasses.replace(STARTING, ready=True, waiting=0.0, unreached="g0: it refuses this gateway's token")
    assert failure.find([dataclasses.replace(ready, ready_for=60.0)], 60.0) is None
    found = failure.find([dataclasses.replace(ready, ready_for=61.0)], 60.0)
    assert found.reason == conditions.PROGRESS_DEADLINE_EXCEEDED
    assert found.message == "demo-decode-1: no gateway has reached it within 1m: g0: it refuses this gateway's token"
    assert failure.find([dataclasses.replace(ready, ready_for=61.0, unreached="")], 60.0) is None
