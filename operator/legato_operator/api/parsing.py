"""From a manifest's text, or an object of the cluster, to the types of `resources`, or to every problem found."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from legato_operator.api import field_errors, rules, yaml_text
from legato_operator.api.resources import InferenceService, ObjectMeta
from legato_operator.errors import ManifestError
from legato_protocol import names


def parse(text: str) -> InferenceService:
    """The service that a manifest's YAML text describes. Raises ManifestError with every problem found."""
    return read_mapping(yaml_text.load(text))


def read_mapping(content: Any) -> InferenceService:
    """The service in one YAML document. Raises ManifestError with every problem found."""
    if not isinstance(content, dict):
        raise ManifestError(
            [("", f"a manifest is a mapping with apiVersion, kind, metadata and spec, not {content!r}")]
        )
    return read_service(content)


def read_service(content: Mapping[str, Any]) -> InferenceService:
    """The service in a manifest or in an object of the cluster. Raises ManifestError with every problem found."""
    try:
        service = InferenceService.model_validate(content)
    except ValidationError as error:
        raise ManifestError(field_errors.problems(error, InferenceService, content)) from None
    if problems := rules.problems(service.spec):
        raise ManifestError(problems)
    return service


def service_from_object(stored: Mapping[str, Any]) -> InferenceService:
    """The service in an object that a cluster keeps, which has a status and metadata of the server beside it."""
    known = {field.alias for field in ObjectMeta.model_fields.values()}
    metadata = {key: value for key, value in stored["metadata"].items() if key in known}
    return read_service({**{k: v for k, v in stored.items() if k != "status"}, "metadata": metadata})


def with_spec(service: InferenceService, spec: Mapping[str, Any]) -> InferenceService:
    """The same service with another spec, as the cluster has it. Raises ManifestError."""
    kinds = {"apiVersion": names.API_VERSION, "kind": names.INFERENCE_SERVICE}
    return service_from_object({**kinds, "metadata": service.metadata.model_dump(by_alias=True), "spec": spec})


def to_object(service: InferenceService, written: Mapping[str, Any]) -> dict[str, Any]:
    """What to apply for a service: its manifest as written, so that defaults stay defaults."""
    metadata = {**written["metadata"], "namespace": service.metadata.namespace}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.INFERENCE_SERVICE,
        "metadata": metadata,
        "spec": written["spec"],
    }
