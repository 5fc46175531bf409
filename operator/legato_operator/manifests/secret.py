"""The service's token: what authenticates gateways, workers and the operator to each other."""

import base64
import contextlib
from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.cluster import Object, labels_of
from legato_operator.manifests import common
from legato_protocol import names


def token(service: InferenceService, value: str) -> dict[str, Any]:
    """The Secret that holds the token."""
    data = {"token": base64.b64encode(value.encode()).decode()}
    metadata = common.metadata(service, common.token_name(service))
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}


def is_of(secret: Object, service: str) -> bool:
    """Whether it is the service's own, though somebody took its label away: another one may have the name."""
    metadata = secret["metadata"]
    owners = [(owner["kind"], owner["name"]) for owner in metadata.get("ownerReferences", ())]
    return labels_of(secret).get(names.LABEL_SERVICE) == service or (names.INFERENCE_SERVICE, service) in owners


def content(secret: Object) -> dict[str, str]:
    """What a Secret holds, by key; without what is no text."""
    found = {}
    for key, value in (secret.get("data") or {}).items():
        with contextlib.suppress(ValueError):
            found[key] = base64.b64decode(value or "").decode()
    return found
