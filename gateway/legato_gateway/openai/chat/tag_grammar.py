"""Grammars of calls that have tags around each argument, whose strings are plain text (Qwen3-Coder, GLM)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from legato_gateway.openai.chat.call_marks import CallMarks
from legato_gateway.parsers.tool_calls import glm, literals, qwen3_coder
from legato_grammar import lark


@dataclass(frozen=True, slots=True)
class TagLayout:
    """Texts of a call: `{}` stands for a name, and BREAK for a line break that some versions of a model leave out.

    `end` follows a value, which contains none of `ends`.
    """

    function: str
    key: str
    end: str
    after: str
    close: str
    ends: tuple[str, ...]


BREAK: Final = "\0"
LAYOUTS: Final = MappingProxyType(
    {
        "Qwen3Coder": TagLayout(
            f"{qwen3_coder.OPEN}\n{qwen3_coder.FUNCTION}{{}}>\n",
            f"{qwen3_coder.PARAMETER}{{}}>\n",
            f"\n{qwen3_coder.END_PARAMETER}\n",
            "",
            f"{qwen3_coder.END_FUNCTION}\n{qwen3_coder.CLOSE}",
            qwen3_coder.END_VALUE,
        ),
        "GLM": TagLayout(
            f"{glm.OPEN}{{}}{BREAK}",
            f"{glm.KEY}{{}}{glm.END_KEY}{BREAK}{glm.VALUE}",
            glm.END_VALUE,
            BREAK,
            glm.CLOSE,
            (glm.END_VALUE,),
        ),
    }
)
_OBJECT: Final = frozenset({"type", "properties", "required", "additionalProperties", "title", "description"})
_TEXT: Final = frozenset({"type", "enum", "const", "title", "description", "default", "examples"})
_VALUE: Final = _OBJECT | _TEXT | {"items", "anyOf", "minimum", "maximum", "minItems", "maxItems"}
_ANY: Final = r"/(.|\n)*/"


def enforces(family: str, schema: Mapping[str, Any]) -> bool:
    """True if a grammar can enforce the schema of a function's arguments: no patterns, references or mixed types."""
    if schema.keys() - _OBJECT or schema.get("additionalProperties") is not False:
        return False
    ends = LAYOUTS[family].ends
    return all(_is_name(key) and _enforced(each, ends) for key, each in schema["properties"].items())


def _is_name(key: str) -> bool:
    return 0 < len(key) <= qwen3_coder.LONGEST_KEY and not set(key) & set("<>\n") and key == key.strip()


def _enforced(schema: Any, ends: tuple[str, ...]) -> bool:
    if not isinstance(schema, dict):
        return False
    allowed = literals.kinds({"properties": {"it": schema}}, "it")
    if allowed == literals.STRING:
        return not schema.keys() - _TEXT and not any(end in each for each in _choices(schema) for end in ends)
    return "string" not in allowed and _is_plain(schema)


def _is_plain(schema: Any) -> bool:
    """True if no part of the schema has a keyword that might be refused."""
    if not isinstance(schema, dict):
        return isinstance(schema, bool)
    parts = [*schema.get("properties", {}).values(), *schema.get("anyOf", ()), schema.get("items", True)]
    return not schema.keys() - _VALUE and all(map(_is_plain, [*parts, schema.get("additionalProperties", True)]))


def _choices(schema: Mapping[str, Any]) -> list[str]:
    return [schema["const"]] if "const" in schema else schema.get("enum", [])


def rules(family: str, functions: Mapping[str, Mapping[str, Any]], marks: CallMarks, several: bool) -> Iterator[str]:
    """Yields rules for an answer: one of these calls and, with `several`, more of them.

    Arguments keep the schema's order.
    """
    layout = LAYOUTS[family]
    yield f"start: call{' (BREAK? call)*' if several else ''}"
    yield 'BREAK: "\\n"'
    yield "call: " + " | ".join(f"function_{number}" for number in range(len(functions)))
    for number, (name, schema) in enumerate(functions.items()):
        required, parts = schema.get("required", ()), [_written(layout.function, marks, name)]
        for at, (key, each) in enumerate(schema["properties"].items()):
            rule = f"argument_{number}_{at}"
            yield f"{rule}: {_written(layout.key, marks, key)} {rule}_value {_written(layout.after, marks)}"
            yield from _value(f"{rule}_value", each, marks.write(layout.end))
            parts.append(rule if key in required else f"{rule}?")
        yield f"function_{number}: {' '.join([*parts, marks.write(layout.close)])}"
    yield f"text{'' if marks.is_token(layout.end) else '[lazy]'}: TEXT {marks.write(layout.end)}"
    yield f"TEXT: {_ANY} & ~({_ANY} ({' | '.join(map(lark.literal, layout.ends))}) {_ANY})"


def _written(text: str, marks: CallMarks, name: str = "") -> str:
    """Formats a part of a call, with a function's or an argument's name."""
    return " BREAK? ".join(marks.write(part.format(name)) for part in text.split(BREAK)).strip()


def _value(rule: str, schema: Mapping[str, Any], end: str) -> Iterator[str]:
    """Yields rules for a value and its closing tag."""
    if literals.kinds({"properties": {"it": schema}}, "it") != literals.STRING:
        yield f"{rule}_json: {lark.schema(schema)}"
        yield f"{rule}: {rule}_json {end}"
    elif choices := _choices(schema):
        yield f"{rule}: ({' | '.join(map(lark.literal, choices))}) {end}"
    else:
        yield f"{rule}: text"
