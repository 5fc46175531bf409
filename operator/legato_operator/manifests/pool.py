"""WorkerPool: the unit of scaling. The operator creates its pods."""

from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.manifests import common
from legato_protocol import names


def worker_pool(service: InferenceService, role: str) -> dict[str, Any]:
    """Returns the pool of a role, without `replicas`, which belongs to the scaler."""
    spec = {"service": service.metadata.name, "role": role}
    return _pool(service, role, spec) | {
        "metadata": common.metadata(service, common.pool_name(service, role), {names.LABEL_ROLE: role})
    }


def scale(service: InferenceService, role: str, replicas: int) -> dict[str, Any]:
    """Returns a pool with only `spec.replicas`, for a scaler to apply."""
    return _pool(service, role, {"replicas": replicas})


def _pool(service: InferenceService, role: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": common.pool_name(service, role), "namespace": service.metadata.namespace}
    return {"apiVersion": names.API_VERSION, "kind": names.WORKER_POOL, "metadata": metadata, "spec": spec}
