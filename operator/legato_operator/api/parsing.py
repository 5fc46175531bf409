"""Parses manifests and objects of the cluster to the types of `resources`, and reports every problem."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from legato_operator.api import field_errors, kinds, rules, yaml_text
from legato_operator.api.resources import InferenceService, ObjectMeta
from legato_operator.errors import ManifestError


def parse(text: str) -> InferenceService:
    """Returns the service that YAML text describes. Raises ManifestError with every problem."""
    return read_mapping(yaml_text.load(text))


def read_mapping(content: Any) -> InferenceService:
    """Returns the service in one YAML document. Raises ManifestError with every problem."""
    if not isinstance(content, dict):
        raise ManifestError(
            [("", f"a manifest is a mapping with apiVersion, kind, metadata and spec, not {content!r}")]
        )
    return read_service(content)


def read_service(content: Mapping[str, Any]) -> InferenceService:
    """Returns the service in a manifest or an object of the cluster. Raises ManifestError with every problem."""
    try:
        service = InferenceService.model_validate(content)
    except ValidationError as error:
        raise ManifestError(field_errors.problems(error, InferenceService, content)) from None
    if problems := rules.problems_of_service(service):
        raise ManifestError(problems)
    return service


def service_from_object(stored: Mapping[str, Any]) -> InferenceService:
    """Returns the service in a stored object, without its status and the server's metadata.

    Fields of a newer CRD that this version does not know are left out. Raises ManifestError.
    """
    content = _parsed_part(stored)
    for location in _unknown(content):
        content = _without(content, location)
    return read_service(content)


def unknown_fields(stored: Mapping[str, Any]) -> list[str]:
    """Returns the paths of a stored object's fields that only a newer CRD knows."""
    return [".".join(str(part) for part in location) for location in _unknown(_parsed_part(stored))]


def _parsed_part(stored: Mapping[str, Any]) -> dict[str, Any]:
    known = {field.alias for field in ObjectMeta.model_fields.values()}
    metadata = {key: value for key, value in stored["metadata"].items() if key in known}
    return {**{key: value for key, value in stored.items() if key != "status"}, "metadata": metadata}


def _unknown(content: Mapping[str, Any]) -> list[tuple[int | str, ...]]:
    try:
        InferenceService.model_validate(content)
    except ValidationError as error:
        return [details["loc"] for details in error.errors() if details["type"] == "extra_forbidden"]
    return []


def _without(content: Any, location: Sequence[int | str]) -> Any:
    first, *inner = location
    if isinstance(content, list):  # keeps its length: other locations are indices into it
        return [_without(value, inner) if index == first else value for index, value in enumerate(content)]
    if not inner:
        return {key: value for key, value in content.items() if key != first}
    return {key: _without(value, inner) if key == first else value for key, value in content.items()}


def with_spec(service: InferenceService, spec: Mapping[str, Any]) -> InferenceService:
    """Returns the service with another spec from the cluster. Raises ManifestError."""
    return service_from_object(kinds.item(service.kind, service.metadata.model_dump(by_alias=True), spec=spec))


def to_object(service: InferenceService, written: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the object to apply for a service: its manifest as written, so that defaults stay unset."""
    metadata = {**written["metadata"], "namespace": service.metadata.namespace}
    return kinds.item(service.kind, metadata, spec=written["spec"])
