"""Kubernetes' HorizontalPodAutoscaler for a metric with a target per worker (`AverageValue`).

After https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/: every 15 s the desired size is the
metric divided by its target, unless that is within the tolerance of the current size. A pool shrinks only to the
highest recommendation within the stabilization window. Policies limit the change per period. KEDA also scales through
it.
"""

import math
from collections import deque
from dataclasses import dataclass

TOLERANCE = 0.1
SYNC = 15.0  # seconds between decisions
_LONGEST_PERIOD = 1800.0  # seconds: the longest policy period that Kubernetes accepts


@dataclass(frozen=True)
class HpaPolicy:
    """Within `seconds`, a pool may change by `workers` or by `percent` of its size, whichever is more."""

    seconds: float
    workers: int = 0
    percent: float = 0.0


@dataclass(frozen=True)
class HpaBehavior:
    """The defaults of Kubernetes 1.35."""

    up: tuple[HpaPolicy, ...] = (HpaPolicy(15, workers=4), HpaPolicy(15, percent=100))
    down: tuple[HpaPolicy, ...] = (HpaPolicy(15, percent=100),)
    down_window: float = 300.0


class HorizontalPodAutoscaler:
    """The autoscaler of one pool."""

    def __init__(self, behavior: HpaBehavior) -> None:
        self._behavior = behavior
        self._next = -math.inf
        self._size = 0
        self._desired = 0
        self._recommended: deque[tuple[float, int]] = deque()
        self._changes: deque[tuple[float, int]] = deque()  # when, and by how many workers

    def size(self, now: float, current: int, metric: float, target: float) -> int:
        """Returns the desired size, given the metric of the whole pool."""
        if self._size and current != self._size:
            self._changes.append((now, current - self._size))
        while self._changes and now - self._changes[0][0] >= _LONGEST_PERIOD:
            self._changes.popleft()
        self._size = current
        if now < self._next:
            return self._desired
        self._next = now + SYNC
        needed = self._stabilized(now, current, self._needed(current, metric, target))
        self._desired = self._limited(now, current, needed)
        return self._desired

    def _needed(self, current: int, metric: float, target: float) -> int:
        if current and abs(metric / (target * current) - 1) <= TOLERANCE:
            return current
        return math.ceil(metric / target)

    def _stabilized(self, now: float, current: int, needed: int) -> int:
        if not self._recommended:
            self._recommended.append((now, current))
        self._recommended.append((now, needed))
        while now - self._recommended[0][0] > self._behavior.down_window:
            self._recommended.popleft()
        return max(needed, min(current, max(size for _, size in self._recommended)))

    def _limited(self, now: float, current: int, desired: int) -> int:
        if desired > current:
            return min(desired, max(self._bound(now, current, policy, 1) for policy in self._behavior.up))
        return max(desired, min(self._bound(now, current, policy, -1) for policy in self._behavior.down))

    def _bound(self, now: float, current: int, policy: HpaPolicy, sign: int) -> int:
        """Returns the size that the policy allows: the one at the beginning of its period, plus the permitted
        change."""
        changes = [by for at, by in self._changes if now - at < policy.seconds and by * sign > 0]
        begin = current - sum(changes)
        share = begin * (1 + sign * policy.percent / 100)
        bound = begin + sign * policy.workers if policy.workers else (math.ceil if sign > 0 else int)(share)
        return max(bound, current) if sign > 0 else min(bound, current)
