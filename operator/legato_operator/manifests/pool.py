"""WorkerPool: the unit of scaling. The operator creates its pods."""

from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.manifests import common
from legato_protocol import names


def worker_pool(service: InferenceService, role: str) -> dict[str, Any]:
    """Returns the pool of a role, without `replicas`, which belongs to the scaler."""
    spec = {"service": service.metadata.name, "role": role}
    name = common.pool_name(service, role)
    return common.owned_object(service, names.WORKER_POOL, name, {names.LABEL_ROLE: role}, spec=spec)


def scale(service: InferenceService, role: str, replicas: int) -> dict[str, Any]:
    """Returns a pool with only `spec.replicas`, for a scaler to apply."""
    pool = common.partial_object(service, names.WORKER_POOL, common.pool_name(service, role))
    return {**pool, "spec": {"replicas": replicas}}
