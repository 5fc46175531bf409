"""Common parts of a service's manifests: names, labels, owners, and the revision of a pod template."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from legato_operator.api import kinds
from legato_operator.api.resources import InferenceService
from legato_operator.api.spec.compute_resources import Resources
from legato_operator.api.spec.model import DraftSource
from legato_operator.cluster import Object, is_leaving
from legato_operator.manifests.placement import PodPlacement
from legato_protocol import names
from legato_telemetry import switch

# Field managers of server-side apply.
MANAGER = "legato-operator"
SCALER = "legato-scaler"  # applies the initial `spec.replicas` of a pool, and later ones for `legato scale`
AUTOSCALER = "legato-autoscaler"  # applies `spec.replicas` of pools with `scaling.mode: Managed`
ROTATOR = "legato-rotate-token"  # requests another token, for `legato rotate-token`
DRAINER = "legato-drain"  # annotates draining workers
ADOPTER = "legato-adopt"  # gives workers of a deleted pool to its successor

ANNOTATION_DRAINING = f"{names.API_GROUP}/draining-since"  # when the operator started to drain this worker
ANNOTATION_FAILURES = f"{names.API_GROUP}/failures"  # failures in a row of this worker's predecessors
ANNOTATION_PAUSED = f"{names.API_GROUP}/scaling-paused-until"  # RFC 3339, on a service: end of the autoscaler's pause
ANNOTATION_APPLIED = f"{names.API_GROUP}/applied-hash"  # hash of the applied object, which a removed field changes, too
ANNOTATION_MADE_FROM = f"{names.API_GROUP}/made-from"  # on a kept template: the revision of the kept spec
ROTATE_TOKEN = "rotate-token"
ANNOTATION_ROTATE_TOKEN = f"{names.API_GROUP}/{ROTATE_TOKEN}"  # on a service: any other text is another request
GATEWAY = "gateway"
MANIFEST = "manifest"  # the role label of the ControllerRevision that keeps the last usable spec
TOKEN = "token"  # the role label of the ControllerRevision that is deleted with the token's Secret
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
)  # kinds that a service owns in addition to pods and the token
SPREAD = "topologySpreadConstraints"  # a user's replace the operator's: two for the same topology are refused
MILLION = 1_000_000
LAST_WORDS = 5  # seconds beyond the drain deadline in which a process notifies its clients and ends by itself


def owned_object(
    service: InferenceService,
    kind: str,
    name: str,
    labels: Mapping[str, str] = {},
    annotations: Mapping[str, str] = {},
    **fields: Any,
) -> dict[str, Any]:
    """Returns an object of the service; its owner reference needs the service's uid."""
    mine = {names.LABEL_SERVICE: service.metadata.name, **labels}
    metadata = {"name": name, "namespace": service.metadata.namespace, "labels": mine}
    return kinds.item(kind, metadata | ({"annotations": dict(annotations)} if annotations else {}), **fields)


def partial_object(service: InferenceService, kind: str, name: str, **metadata: Any) -> dict[str, Any]:
    """Returns an object with only this metadata, which a field manager applies to an existing one."""
    return kinds.item(kind, {"name": name, "namespace": service.metadata.namespace, **metadata})


def pod(
    service: InferenceService, name: str, template: Mapping[str, Any], annotations: Mapping[str, str] = {}
) -> dict[str, Any]:
    """Returns a pod of a template, labelled with its revision."""
    metadata = template["metadata"]
    labels = {**metadata["labels"], names.LABEL_POD_REVISION: revision_of(template)}
    annotations = {**metadata.get("annotations", {}), **annotations}
    return owned_object(service, "Pod", name, labels, annotations, spec=template["spec"])


def deployment(
    service: InferenceService, name: str, role: str, template: Mapping[str, Any], **spec: Any
) -> dict[str, Any]:
    """Returns a Deployment of the pods of a role."""
    made = pod(service, name, template)
    metadata = {key: made["metadata"][key] for key in ("labels", "annotations") if key in made["metadata"]}
    selected = {"matchLabels": selector(service, role=role)}
    pods = {"metadata": metadata, "spec": made["spec"]}
    return owned_object(service, DEPLOYMENT, name, spec={**spec, "selector": selected, "template": pods})


def role_labels(role: str) -> dict[str, str]:
    """Returns the labels that identify pods of a role, in addition to the service's."""
    if role == GATEWAY:
        return {names.LABEL_ROLE: role, names.LABEL_APP: names.APP_GATEWAY}
    return {names.LABEL_ROLE: role, names.LABEL_APP: names.APP_WORKER, names.LABEL_SERVING: "true"}


def selector(service: InferenceService, **labels: str) -> dict[str, str]:
    """Returns labels that select pods of this service by `role`, `app` or `serving`."""
    keys = {"role": names.LABEL_ROLE, "app": names.LABEL_APP, "serving": names.LABEL_SERVING}
    return {names.LABEL_SERVICE: service.metadata.name} | {keys[key]: value for key, value in labels.items()}


def spread(selected: Mapping[str, str]) -> dict[str, Any]:
    """Returns a constraint that spreads the selected pods over nodes if possible."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(selected)},
    }


def merged_resources(given: Resources, usual: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns a container's resources, with `usual` requests for resources without request and limit.

    A device's request is also its limit: Kubernetes requires both to be equal.
    """
    named = given.requests.keys() | given.limits.keys()
    requests = {name: amount for name, amount in (usual or {}).items() if name not in named} | given.requests
    devices = {name: amount for name, amount in given.requests.items() if "/" in name}
    both = {"requests": requests, "limits": {**devices, **given.limits}}
    return {kind: amounts for kind, amounts in both.items() if amounts}


def owned(item: Mapping[str, Any], controller: Mapping[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object with owner references, so that it is deleted once its controller and all `others` are gone."""
    references = [_owner_reference(controller) | {"controller": True}, *map(_owner_reference, others)]
    return {**item, "metadata": {**item["metadata"], "ownerReferences": references}}


def _owner_reference(owner: Mapping[str, Any]) -> dict[str, Any]:
    metadata = owner["metadata"]
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"]}


def signed(item: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object annotated with the hash of its desired state."""
    annotations = {**item["metadata"].get("annotations", {}), ANNOTATION_APPLIED: revision_of(item)}
    return {**item, "metadata": {**item["metadata"], "annotations": annotations}}


def applied_hash(item: Mapping[str, Any]) -> str | None:
    """Returns the hash by which `signed` annotated an object, or None."""
    value: str | None = item.get("metadata", {}).get("annotations", {}).get(ANNOTATION_APPLIED)
    return value


def applied(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the entries of `managedFields` that the operator applied."""
    mine = {"manager": MANAGER, "operation": "Apply"}.items()
    return [entry for entry in metadata.get("managedFields") or () if mine <= entry.items()]


def applied_fields(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the fields that the operator applied and nobody changed since; None if the cluster records none."""
    return next((entry["fieldsV1"] or None for entry in applied(item["metadata"])), None)


def is_ours(item: Object) -> bool:
    """True if the operator made the object and it is not being deleted; foreign objects may have the label, too."""
    return applied_hash(item) is not None and not is_leaving(item)


def service_object(service: InferenceService, uid: str) -> Object:
    """Returns the part of a service's object that owner references need."""
    return partial_object(service, names.INFERENCE_SERVICE, service.metadata.name, uid=uid)


def workers_name(service: InferenceService) -> str:
    """Returns the name of the headless Service by which gateways find workers."""
    return pool_name(service, "workers")


def internal_tls_name(service: InferenceService) -> str:
    """Returns the name in the certificate of the service's processes, which pods share because theirs change."""
    return f"{workers_name(service)}.{service.metadata.namespace}.svc"


def pool_name(service: InferenceService, role: str) -> str:
    return f"{service.metadata.name}-{role}"


def token_name(service: InferenceService) -> str:
    return token_name_of(service.metadata.name)


def token_name_of(service: str) -> str:
    return f"{service}-token"


def tracing_variables(service: InferenceService, placement: PodPlacement) -> list[dict[str, Any]]:
    """Returns the environment entries with the endpoint for traces; none without an endpoint."""
    endpoint = service.spec.tracing.endpoint or placement.tracing_endpoint
    return [{"name": switch.ENDPOINT, "value": endpoint}] if endpoint else []


def sampling_variables(service: InferenceService, placement: PodPlacement) -> list[dict[str, Any]]:
    """Returns the environment entries of a gateway's sampling rate; workers trace the same requests."""
    rate = service.spec.tracing.sampling_rate_per_million
    if rate == MILLION or not tracing_variables(service, placement):
        return []
    ratio = f"{rate / MILLION:.6f}"
    return [
        {"name": switch.SAMPLER, "value": "parentbased_traceidratio"},
        {"name": switch.SAMPLER_ARGUMENT, "value": ratio},
    ]


def field_variable(name: str, path: str) -> dict[str, Any]:
    """Returns an environment entry with a field of the pod itself."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def grace_period(service: InferenceService) -> int:
    """Returns the seconds between a pod's deletion and SIGKILL."""
    return math.ceil(service.spec.drain.deadline) + LAST_WORDS


def revision_of(template: Mapping[str, Any]) -> str:
    """Returns a short hash of a pod template."""
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def model_argument(service: InferenceService) -> str:
    """Returns the `--model` argument of a process on this machine."""
    source = service.spec.model.source
    return f"builtin:{source.builtin}" if source.builtin else str(source.path)


def draft_source(service: InferenceService) -> DraftSource | None:
    """Returns the source of the draft model, or None."""
    speculation = service.spec.engine.speculation
    return None if speculation is None else speculation.model


def draft_argument(source: DraftSource) -> str:
    """Returns the `--speculation-model` argument of a process on this machine."""
    if (hub := source.hugging_face) is not None:
        return f"hf:{hub.repo}{f':{hub.file}' if hub.file else ''}@{hub.revision}"
    return f"builtin:{source.builtin}" if source.builtin else str(source.path)
