"""When a worker that ended for good, evicted or refused by its node, is replaced. Pure.

A node may refuse every pod at once. So each one that fails waits for longer than the one whose place it took; how many
failed so in a row is written on the pod.
"""

from legato_operator.observing.observed import Pod

FIRST, LONGEST = 10.0, 300.0  # seconds of age; the time doubles with each failure in a row
FORGIVEN = 600.0  # seconds of age: a worker that lived for so long begins a new row
_DOUBLINGS = 16  # more change nothing


def is_due(pod: Pod) -> bool:
    """Whether it ended for good and its time is over: another starts in its place, and it goes."""
    return pod.failed and pod.age >= min(LONGEST, FIRST * 2 ** min(pod.failures, _DOUBLINGS))


def failures(pod: Pod) -> int:
    """How many have failed in a row with this one."""
    return 1 if pod.age >= FORGIVEN else pod.failures + 1
