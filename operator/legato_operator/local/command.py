"""Converts a pod's container to the command and environment of a process."""

import re
from collections.abc import Mapping
from typing import Any

from legato_operator.cluster import Object

_VARIABLE = re.compile(r"\$\((\w+)\)")
_LABEL = re.compile(r"metadata\.labels\['([^']+)'\]")


def environment(pod: Object) -> dict[str, str]:
    """Returns the container's variables, with fields of the pod resolved. Raises KeyError."""
    return {entry["name"]: _value(pod, entry) for entry in container(pod).get("env", ())}


def container(pod: Object) -> Mapping[str, Any]:
    """Returns the one container of a pod."""
    (only,) = pod["spec"]["containers"]
    return only  # type: ignore[no-any-return]


def names(pod: Object, variable: str) -> bool:
    """True if the pod's command uses a variable."""
    return any(variable in _VARIABLE.findall(text) for text in container(pod)["command"])


def expand(arguments: list[str], variables: Mapping[str, str]) -> list[str]:
    """Returns the arguments with each `$(NAME)` replaced by the variable; unknown names stay, as on Kubernetes."""
    return [_VARIABLE.sub(lambda match: variables.get(match[1], match[0]), text) for text in arguments]


def _value(pod: Object, entry: Mapping[str, Any]) -> str:
    return str(entry["value"]) if "value" in entry else _field(pod, entry["valueFrom"]["fieldRef"]["fieldPath"])


def _field(pod: Object, path: str) -> str:
    if label := _LABEL.fullmatch(path):
        return str(pod["metadata"]["labels"][label[1]])
    return str(pod["metadata"][path.removeprefix("metadata.")])
