"""Computes how long the decision about an idle service stays the same. Pure."""

from collections.abc import Mapping

from legato_operator.api.resources import Spec
from legato_operator.autoscaler.signals import Signals, WorkerSignals
from legato_operator.autoscaler.window import Window

LONGEST = 20.0  # seconds; well below `window.LONGEST_GAP`


def stable_for(signals: Signals, windows: Mapping[str, Window], spec: Spec, now: float) -> float:
    """Returns the seconds for which the decision stays the same if the signals do; 0 unless the service is idle.

    Idle means that nothing has arrived or finished within the last minute, and that nothing waits or runs.
    """
    traffic = signals.traffic
    if traffic is None or traffic.arrivals or traffic.output or traffic.waiting or traffic.queued:
        return 0.0
    if not all(map(_is_idle, signals.workers)):
        return 0.0
    shrinks = (window.until for window in windows.values())
    empties = (window.busy + spec.scaling.idle_after for window in windows.values())
    return min((LONGEST, *(at - now for at in (*shrinks, *empties) if at > now)))


def _is_idle(worker: WorkerSignals) -> bool:
    serves = worker.ready and not worker.draining and worker.queue_tokens is not None
    return serves and not (worker.queue_tokens or worker.running or worker.waiting)
