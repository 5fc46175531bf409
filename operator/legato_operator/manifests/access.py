"""Access to the API: gateways watch EndpointSlices of their namespace and read their own pools; workers have none."""

from typing import Any

from legato_operator.api import roles
from legato_operator.api.resources import InferenceService
from legato_operator.manifests import common
from legato_protocol import names

_GROUP = "rbac.authorization.k8s.io"


def worker_account(service: InferenceService) -> dict[str, Any]:
    """Returns the workers' ServiceAccount, without a token."""
    name = common.pool_name(service, "worker")
    return common.owned_object(service, "ServiceAccount", name, automountServiceAccountToken=False)


def gateway_account(service: InferenceService) -> dict[str, Any]:
    """Returns the gateways' ServiceAccount."""
    return common.owned_object(service, "ServiceAccount", common.pool_name(service, common.GATEWAY))


def role(service: InferenceService) -> dict[str, Any]:
    """Returns the gateways' Role."""
    slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
    pools = {
        "apiGroups": [names.API_GROUP],
        "resources": ["workerpools"],
        "resourceNames": [common.pool_name(service, role) for role in roles.BOTH],
        "verbs": ["get"],
    }
    return common.owned_object(service, "Role", common.pool_name(service, common.GATEWAY), rules=[slices, pools])


def binding(service: InferenceService) -> dict[str, Any]:
    """Returns the RoleBinding to the gateways' ServiceAccount."""
    name = common.pool_name(service, common.GATEWAY)
    role = {"apiGroup": _GROUP, "kind": "Role", "name": name}
    account = {"kind": "ServiceAccount", "name": name, "namespace": service.metadata.namespace}
    return common.owned_object(service, "RoleBinding", name, roleRef=role, subjects=[account])
