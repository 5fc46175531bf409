"""The kinds that the operator reads or writes: their API versions and paths."""

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from legato_protocol import names


@dataclass(frozen=True)
class Kind:
    api_version: str
    plural: str

    @property
    def prefix(self) -> str:
        """Path of the kind's group and version."""
        return f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"


KINDS = {
    names.INFERENCE_SERVICE: Kind(names.API_VERSION, "inferenceservices"),
    names.WORKER_POOL: Kind(names.API_VERSION, "workerpools"),
    "ConfigMap": Kind("v1", "configmaps"),
    "ControllerRevision": Kind("apps/v1", "controllerrevisions"),
    "Deployment": Kind("apps/v1", "deployments"),
    "HTTPRoute": Kind("gateway.networking.k8s.io/v1", "httproutes"),
    "Ingress": Kind("networking.k8s.io/v1", "ingresses"),
    "Event": Kind("events.k8s.io/v1", "events"),
    "Lease": Kind("coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": Kind("networking.k8s.io/v1", "networkpolicies"),
    "PersistentVolumeClaim": Kind("v1", "persistentvolumeclaims"),
    "Pod": Kind("v1", "pods"),
    "PodDisruptionBudget": Kind("policy/v1", "poddisruptionbudgets"),
    "ReplicaSet": Kind("apps/v1", "replicasets"),
    "Role": Kind("rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": Kind("rbac.authorization.k8s.io/v1", "rolebindings"),
    "Secret": Kind("v1", "secrets"),
    "Service": Kind("v1", "services"),
    "ServiceAccount": Kind("v1", "serviceaccounts"),
}


def item(kind: str, metadata: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Returns an object of a kind."""
    return {"apiVersion": KINDS[kind].api_version, "kind": kind, "metadata": metadata, **fields}


def path(kind: str, namespace: str | None = None, name: str | None = None) -> str:
    """Returns the URL path of one object, of a namespace's objects, or of all objects of a kind. Raises KeyError.

    Names from manifests are quoted, so that they cannot lead to another path.
    """
    served = KINDS[kind]
    parts = [*(("namespaces", namespace) if namespace else ()), served.plural, *((name,) if name else ())]
    return "/".join((served.prefix, *(urllib.parse.quote(part, safe="") for part in parts)))
