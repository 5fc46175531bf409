"""One rule over several fields of a spec."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_snake

from legato_operator.api.spec.compute_resources import Resources

_attribute = functools.cache(to_snake)
_TRAVERSES = "matches('(^|/)[.][.](/|$)')"  # a call in CEL: true if a path contains `..`
_UNSET: tuple[object, ...] = (None, {}, Resources())


@dataclass(frozen=True)
class Rule:
    """A condition on the object at a path of the manifest."""

    at: str  # path of the object that is passed to `holds` and is `self` in CEL; empty: the whole service
    field: str  # path of the field to blame, relative to `at`; empty: the object itself
    message: str
    holds: Callable[[Any], bool]
    cel: str = ""  # empty if CEL cannot express it
    arithmetic: Callable[[Any], str] | None = None  # explains a violation, at the end of the message

    @property
    def path(self) -> str:
        """Path of the field to blame."""
        return ".".join(filter(None, (self.at, self.field)))

    def explain(self, given: Any) -> str:
        """Returns the message for an object that breaks the rule."""
        return f"{self.message}: {self.arithmetic(given)}" if self.arithmetic else self.message

    def validation(self) -> dict[str, str]:
        """Returns the rule as an entry of `x-kubernetes-validations`."""
        entry = {"rule": self.cel, "message": self.message}
        return {**entry, "fieldPath": f".{self.field}"} if self.field else entry


def value_at(part: Any, path: str) -> Any:
    """Returns the value at a path of the manifest, or None if a part on the way is missing."""
    for name in filter(None, path.split(".")):
        part = part and getattr(part, _attribute(name))
    return part


def no_traversal(at: str, field: str) -> Rule:
    """Returns the rule that a path contains no `..`, which could leave the volume: Kubernetes refuses such mounts."""
    return Rule(
        at=at,
        field=field,
        message="must not contain ..",
        holds=lambda given: _stays_below(value_at(given, field)),
        cel=f"!has(self.{field}) || !self.{field}.{_TRAVERSES}",
    )


def no_traversal_in_entries(at: str, field: str, *paths: str) -> Rule:
    """Returns the rule that none of these `paths` in each entry of a list contains `..`."""
    optional = {path: [".".join(path.split(".")[:end]) for end in range(1, path.count(".") + 2)] for path in paths}
    unset = {path: " || ".join(f"!has(each.{part})" for part in parts) for path, parts in optional.items()}
    below = " && ".join(f"({missing} || !each.{path}.{_TRAVERSES})" for path, missing in unset.items())
    return Rule(
        at=at,
        field=field,
        message="paths must not contain ..",
        holds=lambda given: all(
            _stays_below(value_at(each, path)) for each in value_at(given, field) for path in paths
        ),
        cel=f"!has(self.{field}) || self.{field}.all(each, {below})",
    )


def exactly_one(at: str, field: str, *names: str, entries: str | None = None, of: str = "") -> Rule:
    """Returns the rule that exactly one of `names` is set: in the object `field` or, with `entries`, in that part of
    each entry of the list `field` (empty: in the entry itself)."""
    this = f"self.{field}".rstrip(".") if entries is None else f"each.{entries}".rstrip(".")
    one = f"[{', '.join(f'has({this}.{name})' for name in names)}].filter(given, given).size() == 1"
    whole = one if entries is None else f"self.{field}.all(each, {one})"

    def holds(given: Any) -> bool:
        part = value_at(given, field)
        parts = [part] if entries is None else [value_at(each, entries) for each in part]
        return all(sum(value_at(each, name) is not None for name in names) == 1 for each in parts if each is not None)

    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    cel = f"!has(self.{field}) || {whole}" if field else whole
    return Rule(at=at, field=field, message=f"exactly one of {listed} must be set{of}", holds=holds, cel=cel)


def only_in_pods(path: str, message: str) -> Rule:
    """Returns the rule, without CEL, that a field must be unset where pods are processes of one machine."""
    at, _, field = path.rpartition(".")
    return Rule(at=at, field=field, message=message, holds=lambda given: value_at(given, field) in _UNSET)


def _stays_below(path: str | None) -> bool:
    return path is None or ".." not in path.split("/")
