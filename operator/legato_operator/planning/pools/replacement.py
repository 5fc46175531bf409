"""Replacement of workers that ended for good, because they were evicted or rejected by their node. Pure.

A node may reject every pod immediately, so each failed worker waits longer than its predecessor before it is
replaced. An annotation of the pod counts the failures in a row.
"""

from legato_operator.observing.observed import Pod

FIRST, LONGEST = 10.0, 300.0  # seconds of age before replacement; doubled by each failure in a row
FORGIVEN = 600.0  # seconds: a worker that reaches this age resets the count
_DOUBLINGS = 16  # beyond LONGEST anyway


def is_due(pod: Pod) -> bool:
    """True if a worker ended for good and its wait is over: it is deleted and replaced."""
    return pod.failed and pod.age >= min(LONGEST, FIRST * 2 ** min(pod.failures, _DOUBLINGS))


def failures(pod: Pod) -> int:
    """Returns the number of failures in a row, including this one."""
    return 1 if pod.age >= FORGIVEN else pod.failures + 1
