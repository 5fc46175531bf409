"""What the manifests of a service share: names, labels, owners, and the revision of a pod template."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from legato_operator.api.compute_resources import Resources
from legato_operator.api.resources import InferenceService
from legato_operator.cluster import Object, is_leaving
from legato_operator.manifests.placement import PodPlacement
from legato_protocol import names
from legato_telemetry import switch

# Field managers of server-side apply.
MANAGER = "legato-operator"
SCALER = "legato-scaler"  # applies the initial `spec.replicas` of a pool, and later ones for `legato scale`
AUTOSCALER = "legato-autoscaler"  # applies `spec.replicas` of pools with `scaling.mode: Managed`
ROTATOR = "legato-rotate-token"  # asks for another token, for `legato rotate-token`
DRAINER = "legato-drain"  # marks workers that were chosen to leave

ANNOTATION_DRAINING = f"{names.API_GROUP}/draining-since"  # when the operator chose this worker to leave
ANNOTATION_FAILURES = f"{names.API_GROUP}/failures"  # how many workers in a row failed whose place this one takes
ANNOTATION_PAUSED = f"{names.API_GROUP}/scaling-paused-until"  # RFC 3339, on a service: until then nothing is scaled
ANNOTATION_APPLIED = f"{names.API_GROUP}/applied-hash"  # hash of the applied object: removing a field changes it too
ANNOTATION_MADE_FROM = f"{names.API_GROUP}/made-from"  # on a kept template: the revision of the kept spec it is of
ROTATE_TOKEN = "rotate-token"
ANNOTATION_ROTATE_TOKEN = f"{names.API_GROUP}/{ROTATE_TOKEN}"  # on a service: any other text is another request
GATEWAY = "gateway"
MANIFEST = "manifest"  # the role, so to speak, of the ControllerRevision that keeps the last usable spec
TOKEN = "token"  # the role of the ControllerRevision that is deleted with the Secret of the token
DEPLOYMENT = "Deployment"
REVISION = "ControllerRevision"
OWNED_KINDS = (
    names.WORKER_POOL,
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "Service",
    "NetworkPolicy",
    "PodDisruptionBudget",
    DEPLOYMENT,
    REVISION,
)  # what a service owns beside pods and the token
SPREAD = "topologySpreadConstraints"  # two of them for the same topology are refused: a user's take the place of ours
MILLION = 1_000_000
LAST_WORDS = 5  # seconds beyond the drain deadline in which a process tells its clients and ends by itself


def metadata(service: InferenceService, name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Metadata of an owned object."""
    mine = {names.LABEL_SERVICE: service.metadata.name, **(labels or {})}
    return {"name": name, "namespace": service.metadata.namespace, "labels": mine}


def role_labels(role: str) -> dict[str, str]:
    """What the pods of a role are told by, beside the service."""
    if role == GATEWAY:
        return {names.LABEL_ROLE: role, names.LABEL_APP: names.APP_GATEWAY}
    return {names.LABEL_ROLE: role, names.LABEL_APP: names.APP_WORKER, names.LABEL_SERVING: "true"}


def selector(service: InferenceService, **labels: str) -> dict[str, str]:
    """Labels that choose pods of this service: `role`, `app` or `serving`."""
    keys = {"role": names.LABEL_ROLE, "app": names.LABEL_APP, "serving": names.LABEL_SERVING}
    return {names.LABEL_SERVICE: service.metadata.name} | {keys[key]: value for key, value in labels.items()}


def spread(selected: Mapping[str, str]) -> dict[str, Any]:
    """That these pods go to different nodes where that can be: one that is lost takes as few as possible with it."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(selected)},
    }


def merged_resources(given: Resources, usual: Mapping[str, str] | None = None) -> dict[str, Any]:
    """As a container has them: `usual` requests are made of what is neither requested nor limited.

    What is requested of a device is its limit too: Kubernetes wants both, and equal.
    """
    named = given.requests.keys() | given.limits.keys()
    requests = {name: amount for name, amount in (usual or {}).items() if name not in named} | given.requests
    devices = {name: amount for name, amount in given.requests.items() if "/" in name}
    both = {"requests": requests, "limits": {**devices, **given.limits}}
    return {kind: amounts for kind, amounts in both.items() if amounts}


def owned(item: Mapping[str, Any], owner: Mapping[str, Any]) -> dict[str, Any]:
    """An object that ends with its owner, an object of the cluster."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    return {**item, "metadata": {**item["metadata"], "ownerReferences": [reference]}}


def signed(item: Mapping[str, Any]) -> dict[str, Any]:
    """An object annotated with the hash of its desired state."""
    annotations = {**item["metadata"].get("annotations", {}), ANNOTATION_APPLIED: revision_of(item)}
    return {**item, "metadata": {**item["metadata"], "annotations": annotations}}


def applied_hash(item: Mapping[str, Any]) -> str | None:
    """The hash that `signed` gave an object; None if it has none."""
    value: str | None = item.get("metadata", {}).get("annotations", {}).get(ANNOTATION_APPLIED)
    return value


def applied(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of `managedFields` that the operator applied."""
    mine = {"manager": MANAGER, "operation": "Apply"}.items()
    return [entry for entry in metadata.get("managedFields") or () if mine <= entry.items()]


def applied_fields(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Fields that the operator applied and nobody changed since; None if the cluster does not record them."""
    return next((entry["fieldsV1"] or None for entry in applied(item["metadata"])), None)


def is_ours(item: Object) -> bool:
    """Made by the operator, and not on its way out; somebody else's object may carry the label too."""
    return applied_hash(item) is not None and not is_leaving(item)


def service_object(service: InferenceService, uid: str) -> Object:
    """As much of a service's object as owner references need."""
    metadata = {"name": service.metadata.name, "namespace": service.metadata.namespace, "uid": uid}
    return {"apiVersion": names.API_VERSION, "kind": names.INFERENCE_SERVICE, "metadata": metadata}


def workers_name(service: InferenceService) -> str:
    """Of the headless Service by which gateways find workers."""
    return pool_name(service, "workers")


def internal_tls_name(service: InferenceService) -> str:
    """What the certificate of the service's processes is for. Pods have no names that last."""
    return f"{workers_name(service)}.{service.metadata.namespace}.svc"


def pool_name(service: InferenceService, role: str) -> str:
    return f"{service.metadata.name}-{role}"


def token_name(service: InferenceService) -> str:
    return token_name_of(service.metadata.name)


def token_name_of(service: str) -> str:
    return f"{service}-token"


def tracing_variables(service: InferenceService, placement: PodPlacement) -> list[dict[str, Any]]:
    """The environment entries that say where a process sends traces: none, where nobody names an endpoint."""
    endpoint = service.spec.tracing.endpoint or placement.tracing_endpoint
    return [{"name": switch.ENDPOINT, "value": endpoint}] if endpoint else []


def sampling_variables(service: InferenceService, placement: PodPlacement) -> list[dict[str, Any]]:
    """Those that say which requests a gateway traces; workers trace the same."""
    rate = service.spec.tracing.sampling_rate_per_million
    if rate == MILLION or not tracing_variables(service, placement):
        return []
    ratio = f"{rate / MILLION:.6f}"
    return [
        {"name": switch.SAMPLER, "value": "parentbased_traceidratio"},
        {"name": switch.SAMPLER_ARGUMENT, "value": ratio},
    ]


def field_variable(name: str, path: str) -> dict[str, Any]:
    """An environment entry with a field of the pod itself."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def grace_period(service: InferenceService) -> int:
    """Seconds between the deletion of a pod and its being killed."""
    return math.ceil(service.spec.drain.deadline) + LAST_WORDS


def revision_of(template: Mapping[str, Any]) -> str:
    """A short name for exactly this pod template."""
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def model_argument(service: InferenceService) -> str:
    """The `--model` that a process on this machine is started with."""
    source = service.spec.model.source
    return f"builtin:{source.builtin}" if source.builtin else str(source.path)
