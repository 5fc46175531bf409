"""Texts, patterns and schemas with any content, formatted for rules in Lark's syntax."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from legato_grammar.normal_form import normalized

# Room to indent, but not for a model to go on with nothing but spaces.
SPACED: Final[Mapping[str, Any]] = {"whitespace_pattern": r"[ \t\n\r]{0,32}", "whitespace_flexible": True}
_STRICT: Final = {"lenient": False}
_SLASH: Final = re.compile(r"\\.|[/\n]", re.DOTALL)


def literal(text: str) -> str:
    """Formats a literal text."""
    return _escaped(json.dumps(text).replace("\x7f", "\\u007f"))


def pattern(regex: str) -> str:
    """Formats a regular expression, which the whole text must match."""
    return f"/{_SLASH.sub(_plain, unanchored(regex)) or '()'}/"


def schema(schema: Any, spacing: Mapping[str, Any] = SPACED) -> str:
    """Formats a JSON schema with this space between parts; unsupported keywords are refused."""
    schema = normalized(schema)
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": {**spacing, **_STRICT}}
    return f"%json {_escaped(json.dumps(schema))}"


def unanchored(regex: str) -> str:
    """Removes anchors: the whole text must match anyway, and llguidance does not support them."""
    regex = regex.removeprefix("^")
    return re.sub(r"(?<!\\)((?:\\\\)*)\$\Z", r"\1", regex)


def _plain(match: re.Match[str]) -> str:
    """Escapes a slash or a line break."""
    return {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}.get(match[0], match[0])


def _escaped(json_text: str) -> str:
    """Escapes sequences with a meaning in rules."""
    return json_text.replace("%", "\\u0025").replace("::=", ":\\u003a=")
