"""What the types of a manifest's parts share."""

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

# Frozen, spelled in camelCase, and without unknown fields.
CONFIG = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel, use_attribute_docstrings=True)

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?$")]
ObjectName = Annotated[  # any Kubernetes object
    str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", max_length=253)
]
