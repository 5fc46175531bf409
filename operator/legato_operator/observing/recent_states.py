"""Remembers each worker's last state for a minute of silence: one missed answer changes no condition."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from legato_operator.cluster import Ref
from legato_operator.observing.observed import Pod, WorkerState

KEPT = 60.0  # seconds of silence; passes are at most 30 s apart while a ready worker does not answer


@dataclass(frozen=True, slots=True)
class _Last:
    state: WorkerState
    silent_since: float | None = None  # of the first pass without an answer


class RecentStates:
    """The last state of each worker with a running core, by service and the pod's uid."""

    def __init__(self) -> None:
        self._last: dict[Ref, dict[str, _Last]] = {}

    def attach(self, service: Ref, pods: Iterable[Pod], now: float) -> list[Pod]:
        """Returns the pods of a pass with their last states, and forgets all other pods of the service."""
        before, every = self._last.get(service, {}), list(pods)
        lasts = {pod.uid: last for pod in every if (last := _next(before.get(pod.uid), pod.state, now)) is not None}
        self._last[service] = lasts
        return [dataclasses.replace(pod, last_state=lasts[pod.uid].state) if pod.uid in lasts else pod for pod in every]

    def forget(self, service: Ref) -> None:
        """Forgets the workers of a deleted service."""
        self._last.pop(service, None)


def _next(last: _Last | None, state: WorkerState | None, now: float) -> _Last | None:
    """Returns what to remember after a pass in which the worker reported `state`, or did not answer."""
    if state is not None and state.core_runs:
        return _Last(state)
    if last is None:
        return None
    since = now if last.silent_since is None else last.silent_since
    return dataclasses.replace(last, silent_since=since) if now - since < KEPT else None
