"""Checks that find why a worker cannot start; each takes one pod and returns a reason and a message, or None. Pure.

Transient states, such as a node being provisioned or an image being pulled, only fail at the deadline. Steps that a
kubelet retries, with pauses of up to five minutes, get that time, because registries have outages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from legato_operator.api import conditions
from legato_operator.observing.observed import Pod
from legato_protocol.settings import durations

CRASHES = 3  # restarts without becoming ready afterwards
PATIENCE = 300.0  # seconds in which a kubelet tries five times to create a container
BLIP = 30.0  # seconds for which a worker that was ready may be unready


@dataclass(frozen=True)
class Failure:
    reason: str  # one of `conditions`
    message: str


def find(pods: Sequence[Pod], deadline: float) -> Failure | None:
    """Returns the failure of the first pod that cannot start, or None. The deadline is in seconds."""
    for pod in pods:
        if late := _unreached(pod, deadline):
            return late
        if pod.ready or blinks(pod):
            continue
        for check in _CHECKS:
            if failure := check(pod, deadline):
                return failure
    return None


def blinks(pod: Pod) -> bool:
    """True if the pod was ready a moment ago and still runs: earlier problems did not keep it from starting."""
    return pod.was_ready and pod.waiting <= BLIP


def tries_again(pod: Pod) -> bool:
    """True if one of the pod's containers cannot be created and the kubelet still has time to retry."""
    return bool(pod.blocked) and not pod.ready and not pod.doomed and pod.blocked_for <= PATIENCE


def _refused(pod: Pod, _deadline: float) -> Failure | None:
    """Fails a pod whose process ended with a permanent error, which the same arguments would repeat."""
    return _failed(pod, pod.refused) if pod.refused else None


def _blocked(pod: Pod, _deadline: float) -> Failure | None:
    """Fails a pod with a container that cannot be created: its image or a referenced object is missing."""
    return _failed(pod, pod.blocked) if pod.blocked and not tries_again(pod) else None


def _crashes(pod: Pod, _deadline: float) -> Failure | None:
    """Fails a pod whose process keeps crashing."""
    if pod.restarts < CRASHES:
        return None
    return _failed(pod, ": ".join(text for text in ("keeps crashing", pod.ended) if text))


def _late(pod: Pod, deadline: float) -> Failure | None:
    """Fails a pod that is not ready by the deadline, because no node accepts it or it never finishes loading."""
    if pod.waiting <= deadline:
        return None
    text = f"{pod.name}: not ready within {durations.text(deadline)}: {pod.message}"
    return Failure(conditions.PROGRESS_DEADLINE_EXCEEDED, text)


def _unreached(pod: Pod, deadline: float) -> Failure | None:
    """Fails a pod that reports ready but that no gateway has connected to by the deadline."""
    if not pod.unreached or pod.ready_for <= deadline:
        return None
    text = f"{pod.name}: no gateway has reached it within {durations.text(deadline)}: {pod.unreached}"
    return Failure(conditions.PROGRESS_DEADLINE_EXCEEDED, text)


def _failed(pod: Pod, text: str) -> Failure:
    return Failure(conditions.ROLLOUT_FAILED, f"{pod.name}: {text}")


_CHECKS: tuple[Callable[[Pod, float], Failure | None], ...] = (_refused, _blocked, _crashes, _late)
