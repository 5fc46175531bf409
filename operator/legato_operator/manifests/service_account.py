"""ServiceAccounts: gateways may discover workers; workers have no access to the API."""

from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.manifests import common


def worker(service: InferenceService) -> dict[str, Any]:
    """Returns the workers' account, without a token."""
    return _account(service, "worker") | {"automountServiceAccountToken": False}


def gateway(service: InferenceService) -> dict[str, Any]:
    """Returns the gateways' account, to which `access` binds a Role."""
    return _account(service, common.GATEWAY)


def _account(service: InferenceService, part: str) -> dict[str, Any]:
    metadata = common.metadata(service, common.pool_name(service, part))
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
