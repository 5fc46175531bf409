"""Grammars of calls that have a tag for each argument (Qwen3-Coder)."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from legato_gateway.parsers.tool_calls import literals, qwen3_coder
from legato_grammar import lark

CALL: Final = f'"{qwen3_coder.OPEN}\\n" function "{qwen3_coder.CLOSE}"'
_OBJECT: Final = frozenset({"type", "properties", "required", "additionalProperties", "title", "description"})
_TEXT: Final = frozenset({"type", "enum", "const", "title", "description", "default", "examples"})
_VALUE: Final = _OBJECT | _TEXT | {"items", "anyOf", "minimum", "maximum", "minItems", "maxItems"}
_END: Final = json.dumps(f"\n{qwen3_coder.END_PARAMETER}\n")
_ANY: Final = r"/(.|\n)*/"


def enforces(schema: Mapping[str, Any]) -> bool:
    """True if a grammar can enforce the schema of a function's arguments: no patterns, references or mixed types."""
    if schema.keys() - _OBJECT or schema.get("additionalProperties") is not False:
        return False
    return all(_is_name(key) and _enforced(each) for key, each in schema["properties"].items())


def _is_name(key: str) -> bool:
    return 0 < len(key) <= qwen3_coder.LONGEST_KEY and not set(key) & set("<>\n")


def _enforced(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    allowed = literals.kinds({"properties": {"it": schema}}, "it")
    if allowed == literals.STRING:
        return not schema.keys() - _TEXT and all(_is_text(each) for each in _choices(schema))
    return "string" not in allowed and _is_plain(schema)


def _is_text(choice: str) -> bool:
    return not any(end in choice for end in qwen3_coder.END_VALUE)


def _is_plain(schema: Any) -> bool:
    """True if no part of the schema has a keyword that might be refused."""
    if not isinstance(schema, dict):
        return isinstance(schema, bool)
    parts = [*schema.get("properties", {}).values(), *schema.get("anyOf", ()), schema.get("items", True)]
    return not schema.keys() - _VALUE and all(map(_is_plain, [*parts, schema.get("additionalProperties", True)]))


def _choices(schema: Mapping[str, Any]) -> list[str]:
    return [schema["const"]] if "const" in schema else schema.get("enum", [])


def rules(functions: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yields rules for `function`: a call of one of these, without the outer tag. Arguments keep the schema's order."""
    yield "function: " + " | ".join(f"function_{number}" for number in range(len(functions)))
    for number, (name, schema) in enumerate(functions.items()):
        required, parts = schema.get("required", ()), [lark.literal(f"{qwen3_coder.FUNCTION}{name}>\n")]
        for at, (key, each) in enumerate(schema["properties"].items()):
            rule = f"argument_{number}_{at}"
            yield f"{rule}: {lark.literal(f'{qwen3_coder.PARAMETER}{key}>{chr(10)}')} {rule}_value"
            yield from _value(f"{rule}_value", each)
            parts.append(rule if key in required else f"{rule}?")
        yield f"function_{number}: {' '.join([*parts, lark.literal(f'{qwen3_coder.END_FUNCTION}{chr(10)}')])}"
    ends = " | ".join(map(lark.literal, qwen3_coder.END_VALUE))
    yield f"text[lazy]: TEXT {_END}"
    yield f"TEXT: {_ANY} & ~({_ANY} ({ends}) {_ANY})"


def _value(rule: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """Yields rules for a value and its closing tag."""
    if literals.kinds({"properties": {"it": schema}}, "it") != literals.STRING:
        yield f"{rule}_json: {lark.schema(schema)}"
        yield f"{rule}: {rule}_json {_END}"
    elif choices := _choices(schema):
        yield f"{rule}: ({' | '.join(map(lark.literal, choices))}) {_END}"
    else:
        yield f"{rule}: text"
