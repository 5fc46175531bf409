"""What the manifests of a service share: names, labels, and the revision of a pod template."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from legato_operator.resources import InferenceService
from legato_protocol import names

ANNOTATION_DRAINING = f"{names.API_GROUP}/draining-since"  # when the operator chose this worker to leave
GATEWAY = "gateway"
LAST_WORDS = 5  # seconds beyond the drain deadline in which a process tells its clients and ends by itself


def metadata(
    service: InferenceService, name: str, role: str | None = None, revision: str | None = None
) -> dict[str, Any]:
    """Metadata of an owned object."""
    labels = {names.LABEL_SERVICE: service.metadata.name}
    if role is not None:
        labels[names.LABEL_ROLE] = role
    if revision is not None:
        labels[names.LABEL_POD_REVISION] = revision
    return {"name": name, "namespace": service.metadata.namespace, "labels": labels}


def pool_name(service: InferenceService, role: str) -> str:
    return f"{service.metadata.name}-{role}"


def token_name(service: InferenceService) -> str:
    return f"{service.metadata.name}-token"


def token_variable(service: InferenceService) -> dict[str, Any]:
    """The environment entry that brings the service's token into a container."""
    secret = {"name": token_name(service), "key": "token"}
    return {"name": names.ENV_TOKEN, "valueFrom": {"secretKeyRef": secret}}


def field_variable(name: str, path: str) -> dict[str, Any]:
    """An environment entry with a field of the pod itself."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def grace_period(service: InferenceService) -> int:
    """Seconds from the wish that a pod ends until it is killed."""
    return math.ceil(service.spec.drain.deadline) + LAST_WORDS


def revision_of(template: Mapping[str, Any]) -> str:
    """A short name for exactly this pod template."""
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def model_argument(service: InferenceService) -> str:
    """The `--model` that a process of this service is started with."""
    source = service.spec.model.source
    return f"builtin:{source.builtin}" if source.builtin else str(source.path)
