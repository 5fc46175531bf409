"""Why a worker cannot come up: checks on one pod, each of which gives a reason and a message or nothing. Pure.

What passes by itself in a moment, a node that is being made or an image on its way, is for the deadline to judge. What
a kubelet tries again, with pauses of up to five minutes, has that time: registries have outages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from legato_operator.api import conditions
from legato_operator.observing.observed import Pod
from legato_protocol import durations

CRASHES = 3  # restarts, without being ready after them
PATIENCE = 300.0  # seconds in which a kubelet tries five times to make a container
BLIP = 30.0  # seconds without readiness that say nothing yet of a worker that was ready


@dataclass(frozen=True)
class Failure:
    reason: str  # one of `conditions`
    message: str


def find(pods: Sequence[Pod], deadline: float) -> Failure | None:
    """What the first of these pods that cannot come up has; None where all can. The deadline is in seconds."""
    for pod in pods:
        if late := _unreached(pod, deadline):
            return late
        if pod.ready or blinks(pod):
            continue
        for check in _CHECKS:
            if found := check(pod, deadline):
                return found
    return None


def blinks(pod: Pod) -> bool:
    """Whether it was ready a moment ago and runs on: whatever it went through before, it came up."""
    return pod.was_ready and pod.waiting <= BLIP


def tries_again(pod: Pod) -> bool:
    """Whether one of its containers cannot be made, and there is time left for it."""
    return bool(pod.blocked) and not pod.ready and not pod.doomed and pod.blocked_for <= PATIENCE


def _refused(pod: Pod, _deadline: float) -> Failure | None:
    """Its process ended with a permanent error: the same arguments give the same end."""
    return _failed(pod, pod.refused) if pod.refused else None


def _blocked(pod: Pod, _deadline: float) -> Failure | None:
    """A container cannot be made: its image or what its configuration names is not to be had."""
    return _failed(pod, pod.blocked) if pod.blocked and not tries_again(pod) else None


def _crashes(pod: Pod, _deadline: float) -> Failure | None:
    """Its process ends again and again."""
    if pod.restarts < CRASHES:
        return None
    return _failed(pod, ": ".join(text for text in ("keeps crashing", pod.ended) if text))


def _late(pod: Pod, deadline: float) -> Failure | None:
    """It had its time: no node takes it, or it loads without end."""
    if pod.waiting <= deadline:
        return None
    text = f"{pod.name}: not ready within {durations.text(deadline)}: {pod.message}"
    return Failure(conditions.PROGRESS_DEADLINE_EXCEEDED, text)


def _unreached(pod: Pod, deadline: float) -> Failure | None:
    """It says that it is ready, and no gateway can use it."""
    if not pod.unreached or pod.ready_for <= deadline:
        return None
    text = f"{pod.name}: no gateway has reached it within {durations.text(deadline)}: {pod.unreached}"
    return Failure(conditions.PROGRESS_DEADLINE_EXCEEDED, text)


def _failed(pod: Pod, text: str) -> Failure:
    return Failure(conditions.ROLLOUT_FAILED, f"{pod.name}: {text}")


_CHECKS: tuple[Callable[[Pod, float], Failure | None], ...] = (_refused, _blocked, _crashes, _late)
