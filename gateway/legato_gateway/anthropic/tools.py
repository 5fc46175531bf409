"""Converts `tools` and `tool_choice` of Anthropic's API to a chat's."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from legato_gateway.anthropic.blocks import is_given, unsupported
from legato_gateway.anthropic.schemas import ObjectType, ToolChoice, ToolParam, Tools
from legato_gateway.errors import BadRequest
from legato_gateway.openai.chat.tool_definitions import MAX_TOOLS_BYTES
from legato_gateway.serving import ignored
from legato_gateway.serving.bodies import parsing

_TOOLS = msgspec.json.Decoder(Tools | None)
_KIND = msgspec.json.Decoder(ObjectType)
_TOOL = msgspec.json.Decoder(ToolParam)
_CHOICE = msgspec.json.Decoder(ToolChoice | None)
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def functions(raw: Raw | UnsetType) -> Raw | UnsetType:
    """Converts the field `tools` to OpenAI's, as JSON. Raises BadRequest with the path of an error."""
    if raw is UNSET:
        return UNSET
    parsing.check_size(raw, MAX_TOOLS_BYTES, "tools")
    tools = parsing.decode(_TOOLS, raw, "tools") or ()
    return Raw(msgspec.json.encode([_function(tool, f"tools[{number}]") for number, tool in enumerate(tools)]))


def choice(raw: Raw | UnsetType) -> tuple[Raw | UnsetType, bool | None]:
    """Converts the field `tool_choice` to OpenAI's `tool_choice` and `parallel_tool_calls`."""
    given = parsing.optional(_CHOICE, raw, "tool_choice")
    if given is None:
        return UNSET, None
    if given.type == "tool" and given.name is None:
        raise BadRequest("tool_choice.name is missing", param="tool_choice.name")
    if given.type != "tool" and given.name is not None:
        raise BadRequest("tool_choice.name needs the type tool", param="tool_choice.name")
    named = {"type": "function", "function": {"name": given.name}}
    chosen: Any = named if given.type == "tool" else _CHOICES[given.type]
    return Raw(msgspec.json.encode(chosen)), False if given.disable_parallel_tool_use else None


def _function(raw: Raw, at: str) -> dict[str, Any]:
    kind = parsing.decode(_KIND, raw, at).type
    if kind not in (None, "custom"):
        return {"type": kind}  # chats are answered without it
    tool = parsing.decode(_TOOL, raw, at)
    if tool.allowed_callers and "direct" not in tool.allowed_callers:
        raise unsupported(f"{at}.allowed_callers")
    if tool.defer_loading:  # it is offered from the start
        ignored.note(f"{at}.defer_loading")
    if is_given(tool.input_examples):
        ignored.note(f"{at}.input_examples")
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}
