"""How texts, patterns and schemas are spelled within rules in Lark's form, whatever they contain."""

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
    """This text."""
    return _escaped(json.dumps(text).replace("\x7f", "\\u007f"))


def pattern(regex: str) -> str:
    """A text that matches as a whole."""
    return f"/{_SLASH.sub(_plain, unanchored(regex)) or '()'}/"


def schema(schema: Any, spacing: Mapping[str, Any] = SPACED) -> str:
    """JSON of a schema, with that space between its parts, and nothing taken leniently."""
    schema = normalized(schema)
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": {**spacing, **_STRICT}}
    return f"%json {_escaped(json.dumps(schema))}"


def unanchored(regex: str) -> str:
    """The whole text has to match anyway, and llguidance knows no anchors."""
    regex = regex.removeprefix("^")
    return re.sub(r"(?<!\\)((?:\\\\)*)\$\Z", r"\1", regex)


def _plain(found: re.Match[str]) -> str:
    """On one line, and with its slashes escaped."""
    return {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}.get(found[0], found[0])


def _escaped(json_text: str) -> str:
    """Without what has a meaning in rules."""
    return json_text.replace("%", "\\u0025").replace("::=", ":\\u003a=")
