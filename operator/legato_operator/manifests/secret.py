"""The service's token: what authenticates gateways, workers and the operator to each other."""

import base64
from typing import Any

from legato_operator.manifests import common
from legato_operator.resources import InferenceService


def token(service: InferenceService, value: str) -> dict[str, Any]:
    """The Secret that holds the token."""
    data = {"token": base64.b64encode(value.encode()).decode()}
    metadata = common.metadata(service, common.token_name(service))
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}


def read(secret: dict[str, Any], key: str) -> str:
    """A value out of a Secret. Raises KeyError."""
    return base64.b64decode(secret["data"][key]).decode()
