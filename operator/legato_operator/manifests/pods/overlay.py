"""Merges a user's additions into a pod template. Fields that the operator relies on cannot be replaced."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from legato_operator.api import pod_template

Problem = tuple[str, str]

_LISTED = ("containers", "initContainers", "volumes")
_KEYS = {"volumeMounts": "mountPath", "volumeDevices": "devicePath"}  # keys of list entries, if not `name`
_WHOLE = ("volumes", "env")  # lists whose entries are replaced whole: parts of two entries exclude each other
# Fields with quantities, by the field that contains them. The API server's own error does not name the field.
_AMOUNTS = {
    "spec": ("overhead",),
    "resources": ("requests", "limits"),
    "emptyDir": ("sizeLimit",),
    "resourceFieldRef": ("divisor",),
}
_QUANTITY = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?")


def problems(template: Mapping[str, Any], container: str) -> list[Problem]:
    """Returns (path, message) of every problem of a template. `container` is the name of the operator's container."""
    wrong = [*_unknown("", template, ("metadata", "spec")), *_metadata(template), *_spec(template, container)]
    return [*wrong, *_quantities("", {"spec": template.get("spec")})]


def merge(ours: dict[str, Any], additions: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the operator's template with additions: maps merge by key, lists of named maps by name; other lists are
    concatenated.

    A user's toleration replaces the operator's for the same taint.
    """
    result: dict[str, Any] = _merge(ours, additions)
    return result


def _merge(ours: Any, theirs: Any, key: str = "") -> Any:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        both = {name: _merge(ours[name], theirs[name], name) if name in theirs else ours[name] for name in ours}
        return both | {name: value for name, value in theirs.items() if name not in ours}
    if isinstance(ours, list) and isinstance(theirs, list):
        return _merge_lists(ours, theirs, key)
    return theirs


def _merge_lists(ours: list[Any], theirs: list[Any], field: str) -> list[Any]:
    if field == "tolerations":
        # Kubernetes uses the shorter of two times for one taint, so the operator's would prevent a longer one.
        ours = [entry for entry in ours if not any(_tolerates_the_same(entry, more) for more in theirs)]
    key = _KEYS.get(field, "name")
    if not all(isinstance(entry, Mapping) and key in entry for entry in (*ours, *theirs)):
        return [*ours, *theirs]
    given = {entry[key]: entry for entry in theirs}
    both = []
    for entry in ours:
        more = given.pop(entry[key], {})
        both.append(more if more and field in _WHOLE else _merge(entry, more))
    return [*both, *given.values()]


def _tolerates_the_same(ours: Mapping[str, Any], theirs: Any) -> bool:
    """True if a user's toleration is for the same taint as one of the operator's, which have no value."""
    if not isinstance(theirs, Mapping) or theirs.get("key") != ours["key"]:
        return False
    return theirs.get("effect") in (None, "", ours["effect"]) and not theirs.get("value")


def _metadata(template: Mapping[str, Any]) -> Iterator[Problem]:
    metadata = template.get("metadata", {})
    if not isinstance(metadata, Mapping):
        yield "metadata", "must be a mapping"
        return
    yield from _unknown("metadata.", metadata, ("labels", "annotations"))
    for kind in ("labels", "annotations"):
        entries = metadata.get(kind, {})
        if not isinstance(entries, Mapping) or not all(isinstance(value, str) for value in entries.values()):
            yield f"metadata.{kind}", "must be a mapping of texts"
            continue
        for name in entries:
            if str(name).startswith(pod_template.LABELS):
                yield f"metadata.{kind}.{name}", "belongs to the operator"


def _spec(template: Mapping[str, Any], container: str) -> Iterator[Problem]:
    spec = template.get("spec", {})
    if not isinstance(spec, Mapping):
        yield "spec", "must be a mapping"
        return
    for name in pod_template.SPEC:
        if name in spec:
            yield f"spec.{name}", "belongs to the operator"
    for kind in _LISTED:
        entries = spec.get(kind, [])
        if not _named(entries):
            yield f"spec.{kind}", "must be a list of mappings that each have a name"
        elif kind == "containers":
            yield from _own(entries, container)


def _own(containers: Sequence[Mapping[str, Any]], own: str) -> Iterator[Problem]:
    for container in containers:
        if container["name"] != own:
            continue
        here = f"spec.containers[{own}]"
        for name in pod_template.CONTAINER:
            if name in container:
                yield f"{here}.{name}", "belongs to the operator"
        env = container.get("env", [])
        if not _named(env):
            yield f"{here}.env", "must be a list of mappings that each have a name"
            continue
        for variable in env:
            if str(variable["name"]).startswith(pod_template.VARIABLES):
                yield f"{here}.env.{variable['name']}", "belongs to the operator"


def _quantities(path: str, part: Any) -> Iterator[Problem]:
    """Yields invalid quantities anywhere in a pod."""
    if isinstance(part, list):
        for number, entry in enumerate(part):
            name = entry.get("name", number) if isinstance(entry, Mapping) else number
            yield from _quantities(f"{path}[{name}]", entry)
    for field, value in part.items() if isinstance(part, Mapping) else ():
        here = f"{path}.{field}".removeprefix(".")
        for amount in _AMOUNTS.get(field, ()) if isinstance(value, Mapping) else ():
            yield from _wrong_amounts(f"{here}.{amount}", value.get(amount))
        yield from _quantities(here, value)


def _wrong_amounts(path: str, value: Any) -> Iterator[Problem]:
    if isinstance(value, Mapping):
        for name, amount in value.items():
            yield from _wrong_amounts(f"{path}.{name}", amount)
    elif isinstance(value, str) and not _QUANTITY.fullmatch(value):
        yield path, f"not a valid quantity: {value} (such as 2, 500m or 512Mi)"


def _named(entries: Any) -> bool:
    return isinstance(entries, list) and all(isinstance(entry, Mapping) and "name" in entry for entry in entries)


def _unknown(path: str, part: Mapping[str, Any], known: Sequence[str]) -> Iterator[Problem]:
    for name in part:
        if name not in known:
            yield f"{path}{name}", f"unknown field; known are {', '.join(known)}"
