"""Renames fields in errors of a chat to the fields of Anthropic's API that they came from."""

import re
from collections.abc import Sequence

from legato_gateway.errors import BadRequest, ContextLengthExceeded

_MESSAGE = re.compile(r"\bmessages\[(\d+)\]")
_FIELDS = (
    (re.compile(r"\breasoning_effort 'none'"), "thinking 'disabled'"),
    (re.compile(r"\breasoning_effort\b"), "output_config.effort"),
    (re.compile(r"\bthinking_token_budget\b"), "thinking.budget_tokens"),
    (re.compile(r"(\btools\[\d+\])\.function\.parameters\b"), r"\1.input_schema"),
    (re.compile(r"(\btools\[\d+\])\.function\b"), r"\1"),
    (re.compile(r"\bresponse_format\.json_schema\.schema\b"), "output_config.format.schema"),
    (re.compile(r"\.tool_calls\[\d+\]\.function\.arguments\b"), ".content: input of a tool_use block"),
    (re.compile(r"\.tool_call_id\b"), ".tool_use_id"),
)


def rename(error: BadRequest, places: Sequence[str]) -> None:
    """Renames the fields in `error`. `places` are the paths of the chat's messages."""

    def place(match: re.Match[str]) -> str:
        number = int(match[1])
        return places[number] if number < len(places) else match[0]

    def renamed(text: str) -> str:
        text = _MESSAGE.sub(place, text)
        for pattern, name in _FIELDS:
            text = pattern.sub(name, text)
        return text

    error.message = renamed(error.message)
    if isinstance(error, ContextLengthExceeded):
        error.message = f"prompt is too long: {error.message}"  # clients that compact conversations look for this
    error.args = (error.message,)
    if error.param is not None:
        error.param = renamed(error.param)
