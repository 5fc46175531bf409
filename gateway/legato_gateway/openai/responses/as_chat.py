"""A request of the Responses API as the chat that it means, and what is wrong with that chat as this API names it."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from legato_gateway.errors import BadRequest, Unsupported
from legato_gateway.json_encoding import encode
from legato_gateway.openai.responses.body import LOGPROBS, SHARED, ResponsesBody, TextConfig
from legato_gateway.openai.schemas import ChatBody
from legato_gateway.openai.tools.definitions import MAX_TOOLS, MAX_TOOLS_BYTES
from legato_gateway.serving import bodies

_NO_MESSAGES: Final = Raw(b"[]")  # they are given beside the body
_TOOLS = msgspec.json.Decoder(list[dict[str, Any]] | None)
_CHOICE = msgspec.json.Decoder(str | dict[str, Any] | None)
_TOOL_FIELDS: Final = ("name", "description", "parameters", "strict")
_MESSAGE = re.compile(r"messages\[(\d+)\]")
_NAMES: Final = (
    (re.compile(r"(tools\[\d+\])\.function"), r"\1"),
    (re.compile(r"response_format(\.json_schema)?"), "text.format"),
    (re.compile(r"\breasoning_effort\b"), "reasoning.effort"),
    (re.compile(r"\bmax_(completion_)?tokens\b"), "max_output_tokens"),
)


def chat_body(body: ResponsesBody, text: TextConfig, effort: str | None) -> ChatBody:
    """But for its messages. Raises BadRequest, Unsupported."""
    logprobs = LOGPROBS in (body.include or ())
    return ChatBody(
        **{name: getattr(body, name) for name in SHARED},
        messages=_NO_MESSAGES,
        response_format=_format(text.format),
        max_completion_tokens=body.max_output_tokens,
        logprobs=logprobs,
        top_logprobs=body.top_logprobs if logprobs else None,
        tools=_tools(body.tools),
        tool_choice=_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=effort,
    )


@contextmanager
def told_as_here(places: Sequence[str] = ()) -> Iterator[None]:
    """What is raised for a chat says where it is in this API. `places` are those of the chat's messages."""
    try:
        yield
    except BadRequest as error:
        if error.param == "messages":
            error.param = "input"
        elif error.param is not None:
            error.param = _renamed(error.param, places)
        error.message = _renamed(error.message, places)
        raise


def _renamed(text: str, places: Sequence[str]) -> str:
    for chats, ours in _NAMES:
        text = chats.sub(ours, text)
    return _MESSAGE.sub(lambda found: places[int(found[1])] if int(found[1]) < len(places) else found[0], text)


def _format(given: dict[str, Any] | None) -> Raw | UnsetType:
    if given is None:
        return UNSET
    if given.get("type") != "json_schema":
        return Raw(encode(given))
    named = {key: value for key, value in given.items() if key != "type"}
    return Raw(encode({"type": "json_schema", "json_schema": named}))


def _tools(raw: Raw | UnsetType) -> Raw | UnsetType:
    """In the spelling of chats, where what is known of a function is an object within the tool."""
    if raw is UNSET:
        return UNSET
    size = memoryview(raw).nbytes
    if size > MAX_TOOLS_BYTES:
        raise BadRequest(f"tools has {size} bytes of JSON; at most {MAX_TOOLS_BYTES} are allowed", param="tools")
    tools = bodies.decode(_TOOLS, raw, "tools") or []
    if len(tools) > MAX_TOOLS:
        raise BadRequest(f"there are {len(tools)} tools; at most {MAX_TOOLS} are allowed", param="tools")
    return Raw(encode([_tool(tool, f"tools[{number}]") for number, tool in enumerate(tools)]))


def _tool(tool: dict[str, Any], at: str) -> dict[str, Any]:
    if (kind := tool.get("type")) != "function":
        return {"type": kind}  # chats are answered without it
    for key, value in tool.items():
        off = value is None or value is False or (key == "allowed_callers" and value == ["direct"])
        if key not in ("type", *_TOOL_FIELDS) and not off:
            raise Unsupported(f"{at}.{key[:40]} is not supported by this server", param=f"{at}.{key[:40]}")
    return {"type": "function", "function": {key: value for key, value in tool.items() if key in _TOOL_FIELDS}}


def _tool_choice(raw: Raw | UnsetType) -> Raw | UnsetType:
    if raw is UNSET:
        return UNSET
    chosen = bodies.decode(_CHOICE, raw, "tool_choice")
    if not isinstance(chosen, dict):
        return raw
    if chosen.get("type") != "function":
        text = f"tool_choice of type {str(chosen.get('type'))[:40]!r} is not supported by this server; only function is"
        raise Unsupported(text, param="tool_choice.type")
    if not isinstance(chosen.get("name"), str):
        raise BadRequest("tool_choice.name is missing", param="tool_choice.name")
    return Raw(encode({"type": "function", "function": {"name": chosen["name"]}}))
