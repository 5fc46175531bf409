"""What counts as a worker that cannot come up."""

import dataclasses

import pytest

from legato_operator.api import conditions
from legato_operator.observing.observed import Pod
from legato_operator.planning import failure

STARTING = Pod("demo-decode-1", "uid", "decode", "new", "1", False, False, message="loading the model", waiting=20.0)


@pytest.mark.parametrize(
    ("pod", "reason", "message"),
    [
        ({"refused": "weights are truncated"}, conditions.ROLLOUT_FAILED, "demo-decode-1: weights are truncated"),
        (
            {"blocked": "ImagePullBackOff: no such tag"},
            conditions.ROLLOUT_FAILED,
            "demo-decode-1: ImagePullBackOff: no such tag",
        ),
        (
            {"restarts": 3, "ended": "worker exited with code 1: KeyError: 'x'"},
            conditions.ROLLOUT_FAILED,
            "demo-decode-1: keeps crashing: worker exited with code 1: KeyError: 'x'",
        ),
        (
            {"waiting": 61.0},
            conditions.PROGRESS_DEADLINE_EXCEEDED,
            "demo-decode-1: not ready within 1m: loading the model",
        ),
    ],
)
def test_worker_that_cannot_come_up_says_why(pod, reason, message):
    """A ready one has nothing to say, whatever happened before."""
    failing = dataclasses.replace(STARTING, **pod)
    assert failure.find([STARTING, failing], 60.0) == failure.Failure(reason, message)
    assert failure.find([dataclasses.replace(failing, ready=True)], 60.0) is None


@pytest.mark.parametrize("pod", [{}, {"restarts": 2, "ended": "worker exited with code 1"}, {"waiting": 60.0}])
def test_worker_that_may_come_up_has_its_time(pod):
    assert failure.find([dataclasses.replace(STARTING, **pod)], 60.0) is None
