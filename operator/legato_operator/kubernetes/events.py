"""Kubernetes Events about an object, named by their content, so that a repeat only increases a count."""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from typing import Any

from legato_operator.api import kinds
from legato_operator.cluster import Cluster, Object, ref_of
from legato_operator.errors import ClusterError, Conflict
from legato_operator.kubernetes.leases.lease import micro_time
from legato_operator.manifests import common

LONGEST_NOTE = 1000  # characters; the API allows 1,024
MOST_WAITING = 1000
log = logging.getLogger(__name__)


class Events:
    """A `Recorder` that does not block: `run` writes the recorded Events one after another."""

    def __init__(self, cluster: Cluster, instance: str, most_waiting: int = MOST_WAITING) -> None:
        self._cluster = cluster
        self._instance = instance
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(most_waiting)

    async def record(self, about: Object, warning: bool, reason: str, note: str) -> None:
        try:
            self._waiting.put_nowait(self._event(about, "Warning" if warning else "Normal", reason, note))
        except asyncio.QueueFull:
            log.warning("no Event %s about %s: too many wait", reason, about["metadata"]["name"])

    async def run(self) -> None:
        """Writes Events until cancelled."""
        while True:
            item = await self._waiting.get()
            try:
                await self._write(item)
            except ClusterError as error:
                log.warning("no Event %s about %s: %s", item["reason"], item["regarding"]["name"], error)

    async def _write(self, item: Mapping[str, Any]) -> None:
        try:
            await self._cluster.create(item, common.MANAGER)
        except Conflict:
            stored = await self._cluster.get(ref_of(item))
            count = int(stored.get("series", {}).get("count", 1)) + 1
            first = {key: stored[key] for key in ("eventTime", "reportingInstance")}
            series = {"series": {"count": count, "lastObservedTime": item["eventTime"]}}
            await self._cluster.apply({**item, **first, **series}, common.MANAGER, force=True)

    def _event(self, about: Object, kind: str, reason: str, note: str) -> dict[str, Any]:
        metadata, note = about["metadata"], note[:LONGEST_NOTE]
        content_hash = hashlib.sha256("\0".join((metadata["uid"], kind, reason, note)).encode()).hexdigest()[:16]
        return kinds.item(
            "Event",
            {"name": f"{metadata['name']}.{content_hash}", "namespace": metadata["namespace"]},
            eventTime=micro_time(),
            reportingController=common.MANAGER,
            reportingInstance=self._instance,
            action="Reconcile",
            reason=reason,
            regarding=_reference(about),
            note=note,
            type=kind,
        )


def _reference(about: Object) -> dict[str, str]:
    metadata = about["metadata"]
    kind = {"apiVersion": about["apiVersion"], "kind": about["kind"]}
    return kind | {"namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]}
