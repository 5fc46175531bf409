"""Base class and names shared by the types of a manifest."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

CONFIG = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel, use_attribute_docstrings=True)

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?$")]
ObjectName = Annotated[  # any Kubernetes object
    str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", max_length=253)
]


class ManifestPart(BaseModel):
    """A part of a manifest: frozen, with camelCase field names, and without unknown fields."""

    model_config = CONFIG
