"""Converts Pydantic's errors to sentences for users: the field's path in the manifest and a remedy."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

_TYPES = {
    "int_type": "a whole number",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
}
_LENGTHS = {"string_too_short": ("at least", "min_length"), "string_too_long": ("at most", "max_length")}


def problems(error: ValidationError, root: type[BaseModel], content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns (path, message) of each error in `content`, which was parsed as a `root`."""
    return [(_path(details["loc"]), _message(details, root)) for details in error.errors()]


def _path(location: Iterable[int | str]) -> str:
    return ".".join(str(part) for part in location)


def _message(details: ErrorDetails, root: type[BaseModel]) -> str:
    kind, value = details["type"], details["input"]
    if kind == "extra_forbidden":
        return _unknown(str(details["loc"][-1]), _fields(root, details["loc"][:-1]))
    if kind == "missing":
        return "required field is missing"
    if kind in _TYPES:
        return f"must be {_TYPES[kind]}, not {_shown(value)}"
    context = details.get("ctx", {})
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"must be {words} {context[key]}, not {_shown(value)}"
    if kind in _LENGTHS:
        words, key = _LENGTHS[kind]
        noun = "character" if context[key] == 1 else "characters"
        return f"must have {words} {context[key]} {noun}, not {len(value)}"
    if kind == "literal_error":
        return f"must be {context['expected']}, not {_shown(value)}"
    if kind == "string_pattern_mismatch":
        return f"{_shown(value)} does not match {context['pattern']}"
    if kind == "value_error":
        return str(context["error"])
    return f"{details['msg'].lower()}, not {_shown(value)}"


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if not near:
        near = [field for field in known if field.lower() == name.lower().replace("_", "")]
    hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(known))}"
    return f"unknown field{hint}"


def _fields(root: type[BaseModel], location: Iterable[int | str]) -> list[str]:
    """Returns the allowed field names at a location in the manifest."""
    model = root
    for part in location:
        model = next((model_in(f.annotation) or model for f in model.model_fields.values() if f.alias == part), model)
    return [field.alias or "" for field in model.model_fields.values()]


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Returns the model class of a field's type, optional or not, or None."""
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "nothing" if value is None else repr(value)[:80]
