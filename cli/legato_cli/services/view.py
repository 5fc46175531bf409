"""The view of a service for `legato status` and `legato describe`, the same for Kubernetes and `legato up`."""

from typing import Any

from legato_operator.cluster import Cluster, Object, Ref
from legato_operator.observing import pod_facts
from legato_protocol import names

_STATUS_FIELDS = ("model", "url", "observedGeneration", "pools", "gateway", "scaling")


async def read(cluster: Cluster, ref: Ref, now: float) -> tuple[Object, dict[str, Any]]:
    """Returns the service's object and its view. Raises ClusterError."""
    stored = await cluster.get(ref)
    items = (await cluster.list("Pod", ref.namespace, {names.LABEL_SERVICE: ref.name})).items
    status, spec = stored.get("status", {}), stored.get("spec", {})
    return stored, {
        "name": ref.name,
        "namespace": ref.namespace,
        "generation": stored["metadata"].get("generation"),
        **{key: status[key] for key in _STATUS_FIELDS if key in status},
        "generationConfig": spec.get("model", {}).get("generationConfig", "Model"),
        "slo": spec.get("slo", {}),
        "conditions": status.get("conditions", []),
        "scaling": status.get("scaling"),
        "pods": [
            _pod(item, now)
            for item in sorted(items, key=lambda item: str(item["metadata"]["name"]))
            if pod_facts.belongs(item)
        ],
    }


def _pod(item: Object, now: float) -> dict[str, Any]:
    pod = pod_facts.read(item, now)
    return {
        "name": pod.name,
        "pool": pod.pool,
        "ready": pod.ready,
        "message": pod.refused or pod.message,
        "restarts": pod.restarts,
        "leaving": pod.leaving or pod.draining_since is not None,
        "revision": pod.revision,
        "created": pod.created,
        "node": item["spec"].get("nodeName", ""),
        "ports": item.get("status", {}).get("ports", {}),
    }
