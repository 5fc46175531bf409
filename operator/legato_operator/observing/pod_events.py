"""Finds in Events why no container of a pod has started, such as a volume that cannot be mounted."""

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from legato_operator.cluster import Cluster, Object, seconds_of
from legato_operator.errors import Forbidden
from legato_operator.observing.observed import Pod

PATIENCE = 10.0  # seconds: a kubelet's first try may precede the objects it needs
RETRIED_WITHIN = 180.0  # seconds: a kubelet tries at least every two minutes to mount a volume
MOST = 3  # warnings per pod


async def explain_blocked(cluster: Cluster, namespace: str, pods: Iterable[Pod]) -> list[Pod]:
    """Returns the pods; a pod that has not started for a while is blocked by the warnings about it. Without permission
    to list Events, pods stay as they are."""

    async def explain(pod: Pod) -> Pod:
        if not pod.unstarted or pod.waiting <= PATIENCE or pod.leaving:
            return pod
        try:
            events = (await cluster.list("Event", namespace, about=pod.uid)).items
        except Forbidden:
            return pod
        return dataclasses.replace(pod, blocked=text, blocked_for=pod.waiting) if (text := warnings(events)) else pod

    return await asyncio.gather(*map(explain, pods))


def warnings(events: Sequence[Object]) -> str:
    """Returns the current warnings about a pod, oldest first, so that causes precede consequences. Empty if there has
    been progress since, such as the pull of an image."""
    newest = max(events, key=lambda event: (_last(event), _warns(event)), default=None)
    if newest is None or not _warns(newest):
        return ""
    normal = max((_last(event) for event in events if not _warns(event)), default=0.0)
    since = max(normal, _last(newest) - RETRIED_WITHIN)
    current = [event for event in events if _warns(event) and _last(event) >= since]
    texts = [": ".join(filter(None, (event["reason"], event.get("note")))) for event in sorted(current, key=_first)]
    return "; ".join(list(dict.fromkeys(texts))[:MOST])


def _warns(event: Mapping[str, Any]) -> bool:
    return event.get("type") == "Warning"


def _first(event: Mapping[str, Any]) -> float:
    return seconds_of(event.get("deprecatedFirstTimestamp") or event.get("eventTime") or _made(event))


def _last(event: Mapping[str, Any]) -> float:
    repeated = (event.get("series") or {}).get("lastObservedTime")
    return seconds_of(repeated or event.get("deprecatedLastTimestamp") or event.get("eventTime") or _made(event))


def _made(event: Mapping[str, Any]) -> str:
    return str(event["metadata"]["creationTimestamp"])
