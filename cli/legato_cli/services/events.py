"""Recent Events of a service: from Kubernetes, or kept by `legato up`."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from legato_operator.clock import Clock
from legato_operator.cluster import Cluster, Object, uid_of

KEPT = 100  # Events of a `legato up`


class RecentEvents:
    """A `Recorder` that keeps the last Events."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT)

    async def record(self, about: Object, warning: bool, reason: str, note: str) -> None:
        event = {"type": "Warning" if warning else "Normal", "reason": reason, "message": note, "count": 1}
        self._kept.append({"time": self._clock.timestamp(), **event})

    def all(self) -> list[dict[str, Any]]:
        """Returns the kept Events, the oldest first."""
        return list(self._kept)


async def read(cluster: Cluster, about: Object) -> list[dict[str, Any]]:
    """Returns a cluster's Events about an object, the oldest first. Raises ClusterError."""
    listed = (await cluster.list("Event", about["metadata"]["namespace"])).items
    mine = [_event(item) for item in listed if item.get("regarding", {}).get("uid") == uid_of(about)]
    return sorted(mine, key=lambda event: str(event["time"]))


def _event(item: Mapping[str, Any]) -> dict[str, Any]:
    """Converts an Event. Writers that use the older API set other fields."""
    series = item.get("series") or {}
    times = (series.get("lastObservedTime"), item.get("deprecatedLastTimestamp"), item.get("eventTime"))
    return {
        "time": next((time for time in times if time), item["metadata"]["creationTimestamp"]),
        "type": item.get("type", "Normal"),
        "reason": item.get("reason", ""),
        "message": item.get("note", ""),
        "count": series.get("count") or item.get("deprecatedCount") or 1,
    }
