"""Kubernetes Events about an object. One name for each thing that can be said of it, so that a repeat is a count."""

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

from legato_operator.cluster import Cluster, Object, Ref
from legato_operator.errors import ClusterError, NotLeading, ObjectNotFound
from legato_operator.kubernetes import kinds
from legato_operator.kubernetes.leader import micro_time
from legato_operator.manifests import common

LONGEST_NOTE = 1000  # characters; the API allows 1,024
log = logging.getLogger(__name__)


class Events:
    """A `Recorder`."""

    def __init__(self, cluster: Cluster, instance: str) -> None:
        self._cluster = cluster
        self._instance = instance

    async def record(self, about: Object, warning: bool, reason: str, note: str) -> None:
        try:
            await self._record(about, "Warning" if warning else "Normal", reason, note[:LONGEST_NOTE])
        except NotLeading:
            raise
        except ClusterError as error:
            log.warning("no Event %s about %s: %s", reason, about["metadata"]["name"], error)

    async def _record(self, about: Object, kind: str, reason: str, note: str) -> None:
        metadata = about["metadata"]
        said = hashlib.sha256("\0".join((metadata["uid"], kind, reason, note)).encode()).hexdigest()[:16]
        ref = Ref("Event", metadata["namespace"], f"{metadata['name']}.{said}")
        now = micro_time()
        try:
            stored: Mapping[str, Any] = await self._cluster.get(ref)
        except ObjectNotFound:
            stored = {}
        count = int(stored.get("series", {}).get("count", 1)) + 1
        item = {
            "apiVersion": kinds.KINDS["Event"].api_version,
            "kind": "Event",
            "metadata": {"name": ref.name, "namespace": ref.namespace},
            "eventTime": stored.get("eventTime") or now,
            "reportingController": common.MANAGER,
            "reportingInstance": stored.get("reportingInstance") or self._instance,
            "action": "Reconcile",
            "reason": reason,
            "regarding": _reference(about),
            "note": note,
            "type": kind,
        }
        series = {"series": {"count": count, "lastObservedTime": now}} if stored else {}
        await self._cluster.apply(item | series, common.MANAGER, force=True)


def _reference(about: Object) -> dict[str, str]:
    metadata = about["metadata"]
    found = {"apiVersion": about["apiVersion"], "kind": about["kind"], "namespace": metadata["namespace"]}
    return found | {"name": metadata["name"], "uid": metadata["uid"]}
