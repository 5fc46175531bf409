"""What `legato scale` and `legato status` ask of a running `legato up`."""

from collections.abc import Mapping
from typing import Any

from legato_operator.api import parsing, roles
from legato_operator.api.resources import Spec
from legato_operator.cluster import Cluster, Ref, labels_of
from legato_operator.manifests import common, pool
from legato_protocol import names


class OrderRefused(Exception):
    """The order makes no sense for this service. The text says why."""


class Operations:
    """Orders for one service."""

    def __init__(self, cluster: Cluster, ref: Ref) -> None:
        self._cluster = cluster
        self._ref = ref

    async def answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Do what is asked, or say in `error` why not."""
        try:
            match order:
                case {"do": "scale", "pool": str(name), "replicas": int(replicas)}:
                    return {"message": await self._scale(name, replicas)}
                case {"do": "status"}:
                    return {"status": await self._status()}
            raise OrderRefused("unknown command (is the running `legato up` of the same version?)")
        except OrderRefused as refusal:
            return {"error": str(refusal)}

    async def _scale(self, name: str, replicas: int) -> str:
        service = parsing.service_from_object(await self._cluster.get(self._ref))
        _check(service.spec, name, replicas)
        await self._cluster.apply(pool.scale(service, name, replicas), common.SCALER, force=True)
        return f"{common.pool_name(service, name)}: {replicas} workers desired"

    async def _status(self) -> dict[str, Any]:
        stored = await self._cluster.get(self._ref)
        mine = {names.LABEL_SERVICE: self._ref.name}
        pods = (await self._cluster.list("Pod", self._ref.namespace, mine)).items
        return {
            "conditions": stored.get("status", {}).get("conditions", []),
            "pods": [_pod(item) for item in pods if names.LABEL_ROLE in labels_of(item)],
        }


def _check(spec: Spec, name: str, replicas: int) -> None:
    if name not in roles.of(spec):
        raise OrderRefused(f"the service has no {name} pool: scaling.{name}.max or {name}.replicas is 0")
    if spec.scaling.mode == "Fixed":
        raise OrderRefused(f"spec.scaling.mode is Fixed (change spec.{name}.replicas in the manifest instead)")
    bounds = roles.bounds(spec, name)
    if not bounds.min <= replicas <= bounds.max:
        raise OrderRefused(
            f"not a valid number of {name} workers: {replicas} (spec.scaling.{name}: {bounds.min} to {bounds.max})"
        )


def _pod(item: Mapping[str, Any]) -> dict[str, Any]:
    status = item.get("status", {})
    condition: Mapping[str, Any] = next((c for c in status.get("conditions", ()) if c["type"] == "Ready"), {})
    containers = status.get("containerStatuses", [{}])
    return {
        "name": item["metadata"]["name"],
        "ready": condition.get("status") == "True",
        "message": condition.get("message", ""),
        "restarts": containers[0].get("restartCount", 0),
        "leaving": "deletionTimestamp" in item["metadata"]
        or common.ANNOTATION_DRAINING in item["metadata"].get("annotations", {}),
        "revision": labels_of(item)[names.LABEL_POD_REVISION],
        "ports": status.get("ports", {}),
    }
