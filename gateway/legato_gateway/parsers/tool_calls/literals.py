"""Values of arguments that models write as plain text or in Python, converted to JSON."""

import ast
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from legato_gateway.parsers.tool_calls.json_calls import mended

STRING: Final = frozenset({"string"})
ANY: Final = frozenset({"string", "number", "boolean", "null", "array", "object"})
_WORDS: Final = MappingProxyType({"True": "true", "False": "false", "None": "null"})
_KINDS: Final = MappingProxyType(
    {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null", list: "array", dict: "object"}
)
_DEEPEST: Final = 16  # schemas within schemas
_STRINGS: Final = re.compile(r'[^"]*+(?:"(?:[^"\\]|\\.)*+"[^"]*+)*+', re.DOTALL)  # JSON whose strings are complete


def kinds(function: Mapping[str, Any] | None, key: str) -> frozenset[str]:
    """Returns the JSON types that a function's schema allows for one argument; ANY if it does not say."""
    properties = (function or {}).get("properties")
    return _kinds(properties.get(key) if isinstance(properties, dict) else None, function or {}, {}, _DEEPEST) or ANY


def _kinds(schema: Any, root: Mapping[str, Any], known: dict[str, frozenset[str]], depth: int) -> frozenset[str]:
    """Returns the types of a schema within `root`. `known`: those that references name; each is followed once."""
    if not isinstance(schema, dict) or not depth:
        return ANY
    if isinstance(reference := schema.get("$ref"), str):
        if reference not in known:
            known[reference] = frozenset()
            known[reference] = _kinds(_target(reference, root), root, known, depth - 1)
        return known[reference]
    if "const" in schema:
        return frozenset({_KINDS[type(schema["const"])]})
    if isinstance(values := schema.get("enum"), list):
        return frozenset(_KINDS[type(value)] for value in values)
    if given := schema.get("type"):
        names = given if isinstance(given, list) else [given]
        allowed = {"number" if name == "integer" else str(name) for name in names}
        return frozenset(allowed) if allowed <= ANY else ANY
    if isinstance(parts := schema.get("allOf"), list):
        return ANY.intersection(*(_kinds(part, root, known, depth - 1) for part in parts))
    if isinstance(choices := schema.get("anyOf", schema.get("oneOf")), list):
        return frozenset().union(*(_kinds(choice, root, known, depth - 1) for choice in choices))
    return ANY


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    """Returns the schema that a reference within `root` names, or None."""
    at: Any = root
    for part in reference.removeprefix("#/").split("/"):
        at = at.get(part) if isinstance(at, Mapping) else None
    return at


def typed(text: str, allowed: frozenset[str]) -> str:
    """Converts a plain text to JSON: a string, unless it is JSON of another type that is allowed.

    Where no string is allowed, it may also be a Python literal.
    """
    value = _WORDS.get(text.strip(), text.strip())
    if value.startswith(("{", "[")) and _kind(json_value := mended(value, whole=True)) is not None:
        value = json_value
    kind = _kind(value)
    if "string" in allowed:
        return value if kind in allowed - STRING else json.dumps(text, ensure_ascii=False)
    return to_json(value)


def in_string(text: str) -> bool:
    """True if JSON that begins with `text` goes on within a string."""
    return _STRINGS.fullmatch(text) is None


def to_json(value: str) -> str:
    """Converts a Python literal to JSON. JSON is kept, and anything else becomes a string."""
    if _kind(value) is not None:
        return value
    try:
        written = json.dumps(ast.literal_eval(value), ensure_ascii=False, allow_nan=False)
        written.encode()
        return written
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return json.dumps(value, ensure_ascii=False)


def _kind(value: str) -> str | None:
    """Returns the type of a text in JSON, or None."""
    try:
        return _KINDS[type(json.loads(value, parse_constant=_refuse))]
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(constant)
