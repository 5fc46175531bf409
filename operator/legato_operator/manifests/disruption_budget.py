"""PodDisruptionBudgets: of each pool and of the gateway one pod at a time, so that a node can always be drained."""

from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.manifests import common


def of_pool(service: InferenceService, pool: str) -> dict[str, Any]:
    """Of the workers that stay: those that leave are not in anyone's way."""
    return _budget(service, pool, common.selector(service, role=pool, serving="true"))


def gateway(service: InferenceService) -> dict[str, Any]:
    return _budget(service, common.GATEWAY, common.selector(service, role=common.GATEWAY))


def _budget(service: InferenceService, part: str, selector: dict[str, str]) -> dict[str, Any]:
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector},
    }
    metadata = common.metadata(service, common.pool_name(service, part))
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}
