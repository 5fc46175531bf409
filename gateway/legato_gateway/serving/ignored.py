"""Optional fields that are ignored: noted while the request is prepared, and named in a header of the answer.

Fields that change the meaning of an answer are refused instead. Agents send extras that cannot be switched off.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Final, TypeVar

from starlette.types import Scope

MOST: Final = 16  # names in the header
_SCOPE: Final = "legato.ignored"
_noted: ContextVar[list[str] | None] = ContextVar("noted", default=None)

_T = TypeVar("_T")


def note(field: str) -> None:
    """Notes the path of a field that is ignored; has no effect outside of `collected`."""
    if (names := _noted.get()) is not None and field not in names:
        names.append(field)


def rename(names: Mapping[str, str]) -> None:
    """Replaces the names of chat fields by another API's names."""
    if (noted := _noted.get()) is not None:
        noted[:] = [names.get(name, name) for name in noted]


def collected(prepare: Callable[[bytearray], _T], body: bytearray) -> tuple[_T, list[str]]:
    """Calls `prepare` with a body, and returns its result and the names that it noted."""
    names: list[str] = []
    before = _noted.set(names)
    try:
        return prepare(body), names
    finally:
        _noted.reset(before)


def keep(scope: Scope, names: list[str]) -> None:
    """Keeps the names with the request until its answer starts."""
    scope[_SCOPE] = names


def header(scope: Scope) -> str:
    """Returns the header's value; empty if nothing was ignored."""
    return ", ".join(scope.get(_SCOPE, ())[:MOST])
