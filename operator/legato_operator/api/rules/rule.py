"""One rule over several fields of a spec."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_snake


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


def stays_below(path: str | None) -> bool:
    """True if the path has no `..`; a missing path has none."""
    return path is None or ".." not in path.split("/")


def no_way_up(at: str, field: str) -> Rule:
    """Returns the rule that a path contains no `..`, which could leave the volume: Kubernetes refuses such mounts."""
    return Rule(
        at=at,
        field=field,
        message="must not contain ..",
        holds=lambda given: stays_below(getattr(given, to_snake(field))),
        cel=f"!has(self.{field}) || !self.{field}.matches('(^|/)[.][.](/|$)')",
    )
