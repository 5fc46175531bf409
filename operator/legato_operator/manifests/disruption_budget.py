"""PodDisruptionBudgets: of each pool and of the gateway one pod at a time, so that a node can always be drained.

A pool's says itself how many are to stay. With `maxUnavailable`, Kubernetes counts from the WorkerPool's
`spec.replicas`, which is what somebody asked for and not what the pool gets; and it does not count again when that
changes. Nor does it when a pod's labels leave the selector, so workers that drain stay in it. They are ready until they
end: as long as more are ready than the pool gets, all of these but one are to stay.
"""

from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.manifests import common


def of_pool(service: InferenceService, pool: str, target: int, ready: int) -> dict[str, Any]:
    """Of a pool that gets `target` workers, and has so many `ready` ones that are not deleted."""
    return _budget(service, pool, {"minAvailable": max(0, max(target, ready) - 1)})


def gateway(service: InferenceService) -> dict[str, Any]:
    """Its Deployment gets the replicas that it asks for."""
    return _budget(service, common.GATEWAY, {"maxUnavailable": 1})


def _budget(service: InferenceService, part: str, bound: dict[str, int]) -> dict[str, Any]:
    spec = {
        **bound,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": common.selector(service, role=part)},
    }
    metadata = common.metadata(service, common.pool_name(service, part))
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}
