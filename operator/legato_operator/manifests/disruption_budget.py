"""PodDisruptionBudgets: one pod of each pool and of the gateway at a time, so that a node can always be drained.

A pool's budget uses `minAvailable`. With `maxUnavailable`, Kubernetes would count from the WorkerPool's
`spec.replicas`, which limits may reduce, and would not count again when it changes, or when a pod's labels leave the
selector. Draining workers therefore stay in the selector. They are ready until they end: while more workers are ready
than the target, all ready ones but one must stay.
"""

from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.manifests import common


def pool(service: InferenceService, pool: str, target: int, ready: int) -> dict[str, Any]:
    """Returns the budget of a pool with `target` workers and `ready` ones that are not being deleted."""
    return _budget(service, pool, {"minAvailable": max(0, max(target, ready) - 1)})


def gateway(service: InferenceService) -> dict[str, Any]:
    """Returns the gateway's budget; its Deployment gets all requested replicas."""
    return _budget(service, common.GATEWAY, {"maxUnavailable": 1})


def _budget(service: InferenceService, part: str, bound: dict[str, int]) -> dict[str, Any]:
    spec = {
        **bound,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": common.selector(service, role=part)},
    }
    return common.owned_object(service, "PodDisruptionBudget", common.pool_name(service, part), spec=spec)
