"""Converts a request of the Responses API to a chat, and errors of the chat to this API's names."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from msgspec import UNSET, Raw, UnsetType
from msgspec.json import encode

from legato_gateway.errors import BadRequest
from legato_gateway.openai.responses import tools
from legato_gateway.openai.responses.body import LOGPROBS, SHARED, ResponsesBody, TextConfig
from legato_gateway.openai.responses.tools import ConvertedTools
from legato_gateway.openai.schemas import ChatBody
from legato_gateway.serving import ignored

_NO_MESSAGES: Final = Raw(b"[]")  # they are passed separately
_MESSAGE = re.compile(r"messages\[(\d+)\]")
_TOOL = re.compile(r"\btools\[(\d+)\](?:\.function\b)?")
_NAMES: Final = (
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


@contextmanager
def rename_in_errors(places: Sequence[str] = (), tool_places: Sequence[str] = ()) -> Iterator[None]:
    """Renames fields in errors of the chat. `places` are the paths of its messages, `tool_places` of its tools."""
    try:
        yield
    except BadRequest as error:
        if error.param == "messages":
            error.param = "input"
        elif error.param is not None:
            error.param = _renamed(error.param, places, tool_places)
        error.message = _renamed(error.message, places, tool_places)
        raise


def rename_ignored(tool_places: Sequence[str]) -> None:
    """Renames the ignored fields of the chat to this API's."""
    tools = {f"tools[{number}]": place for number, place in enumerate(tool_places)}
    ignored.rename({"reasoning_effort": "reasoning.effort", **tools})


def _renamed(text: str, places: Sequence[str], tool_places: Sequence[str]) -> str:
    for chats, ours in _NAMES:
        text = chats.sub(ours, text)
    return _placed(_TOOL, _placed(_MESSAGE, text, places), tool_places)


def _placed(pattern: re.Pattern[str], text: str, places: Sequence[str]) -> str:
    return pattern.sub(lambda match: places[int(match[1])] if int(match[1]) < len(places) else match[0], text)


def _format(given: dict[str, Any] | None) -> Raw | UnsetType:
    if given is None:
        return UNSET
    if given.get("type") != "json_schema":
        return Raw(encode(given))
    named = {key: value for key, value in given.items() if key != "type"}
    return Raw(encode({"type": "json_schema", "json_schema": named}))
