"""Converts a request of the Responses API to a chat, and names of the chat's fields to this API's."""

import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, UnsetType
from msgspec.json import encode

from legato_gateway.openai.responses import tools
from legato_gateway.openai.responses.body import LOGPROBS, SHARED, ResponsesBody, TextConfig
from legato_gateway.openai.responses.tools import ConvertedTools
from legato_gateway.openai.schemas import ChatBody
from legato_gateway.serving import ignored

_NO_MESSAGES: Final = Raw(b"[]")  # they are passed separately
NAMES: Final = (  # of fields, for `renaming`
    (re.compile(r"^messages$"), "input"),
    (re.compile(r"response_format(\.json_schema)?"), "text.format"),
    (re.compile(r"\breasoning_effort\b"), "reasoning.effort"),
    (re.compile(r"\bmax_(completion_)?tokens\b"), "max_output_tokens"),
)


def chat_body(body: ResponsesBody, text: TextConfig, effort: str | None, offered: ConvertedTools) -> ChatBody:
    """Returns the chat's body without its messages. Raises BadRequest, Unsupported."""
    logprobs = LOGPROBS in (body.include or ())
    return ChatBody(
        **{name: getattr(body, name) for name in SHARED},
        messages=_NO_MESSAGES,
        response_format=_format(text.format),
        max_completion_tokens=body.max_output_tokens,
        logprobs=logprobs,
        top_logprobs=body.top_logprobs if logprobs else None,
        tools=offered.functions,
        tool_choice=tools.choice(body.tool_choice, offered),
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=effort,
    )


def rename_ignored(tool_places: Sequence[str]) -> None:
    """Renames the ignored fields of the chat to this API's."""
    tools = {f"tools[{number}]": place for number, place in enumerate(tool_places)}
    ignored.rename({"reasoning_effort": "reasoning.effort", **tools})


def _format(given: dict[str, Any] | None) -> Raw | UnsetType:
    if given is None:
        return UNSET
    if given.get("type") != "json_schema":
        return Raw(encode(given))
    named = {key: value for key, value in given.items() if key != "type"}
    return Raw(encode({"type": "json_schema", "json_schema": named}))
