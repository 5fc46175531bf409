"""ControllerRevision: keeps a good pod template, as StatefulSets do, or a usable spec."""

from collections.abc import Mapping
from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.cluster import Object
from legato_operator.manifests import common
from legato_protocol import names


def controller_revision(
    service: InferenceService, role: str, data: Mapping[str, Any], number: int, made_from: str = ""
) -> dict[str, Any]:
    """Returns a ControllerRevision; newer ones have higher numbers. `made_from` is the revision of the spec."""
    revision = common.revision_of(data)
    labels = {names.LABEL_ROLE: role, names.LABEL_POD_REVISION: revision}
    annotations = {common.ANNOTATION_MADE_FROM: made_from} if made_from else {}
    name = f"{common.pool_name(service, role)}-{revision}"
    return common.owned_object(service, common.REVISION, name, labels, annotations, data=data, revision=number)


def template_of(item: Object) -> dict[str, Any]:
    """Returns the template that a ControllerRevision keeps."""
    template: dict[str, Any] = item["data"]
    return template
