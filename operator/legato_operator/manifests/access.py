"""Role and RoleBinding of the gateway, which watches EndpointSlices of its namespace and reads its own pools."""

from typing import Any

from legato_operator.api import roles
from legato_operator.api.resources import InferenceService
from legato_operator.manifests import common
from legato_protocol import names

_GROUP = "rbac.authorization.k8s.io"


def role(service: InferenceService) -> dict[str, Any]:
    """Returns the gateways' Role."""
    slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
    pools = {
        "apiGroups": [names.API_GROUP],
        "resources": ["workerpools"],
        "resourceNames": [common.pool_name(service, role) for role in roles.BOTH],
        "verbs": ["get"],
    }
    return {"apiVersion": f"{_GROUP}/v1", "kind": "Role", "metadata": _metadata(service), "rules": [slices, pools]}


def binding(service: InferenceService) -> dict[str, Any]:
    """Returns the RoleBinding to the gateways' ServiceAccount."""
    name = common.pool_name(service, common.GATEWAY)
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(service),
        "roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": service.metadata.namespace}],
    }


def _metadata(service: InferenceService) -> dict[str, Any]:
    return common.metadata(service, common.pool_name(service, common.GATEWAY))
