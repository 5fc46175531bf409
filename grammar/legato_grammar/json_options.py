"""Options of requests for JSON by a schema: whether it may have additional properties, and its white space."""

import json
from typing import Any

from legato_grammar import lark, validation
from legato_grammar import schema as schemas
from legato_grammar.errors import InvalidGrammar
from legato_protocol.sampling.parameters import JSON_SCHEMA, REGEX, RULES

COMPACT = {"whitespace_flexible": False}


def closed(schema: Any) -> Any:
    """Returns the schema with `additionalProperties: false` in objects that list properties and do not set it."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _closed_within(key, value) for key, value in schema.items()}
    if any(isinstance(schema.get(key), dict) for key in ("properties", "patternProperties")):
        result.setdefault("additionalProperties", False)
    return result


def compact(schema: Any) -> str:
    """Returns rules for JSON without any space. Raises InvalidGrammar with the path in the schema."""
    return _rules(schema, COMPACT)


def spaced_by(schema: Any, pattern: str) -> str:
    """Returns rules for JSON with space that matches `pattern` between parts. Raises InvalidGrammar with the path in
    the schema, or for a pattern that matches anything but space."""
    check_space(pattern)
    return _rules(schema, {"whitespace_pattern": lark.unanchored(pattern), "whitespace_flexible": True})


def check_space(pattern: str) -> None:
    """Raises InvalidGrammar for a pattern that matches anything but JSON's white space."""
    validation.check(REGEX, pattern)
    other = f"start: OTHER\nOTHER: {lark.pattern(pattern)} & ~/[ \\t\\r\\n]*/\n"
    try:
        validation.check(RULES, other)
    except InvalidGrammar:
        return  # nothing else matches
    raise InvalidGrammar("it matches more than space")


def _rules(schema: Any, spacing: dict[str, Any]) -> str:
    validation.check(JSON_SCHEMA, json.dumps(schema))
    return f"start: {lark.schema({} if schema is True else schema, spacing)}\n"


def _closed_within(key: str, value: Any) -> Any:
    if key in schemas.NAMED and isinstance(value, dict):
        return {name: closed(part) for name, part in value.items()}
    return closed(value) if key in (*schemas.ONE, *schemas.LISTS) else value
