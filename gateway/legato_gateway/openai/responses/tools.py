"""Converts tools of the Responses API to functions of a chat, and calls of these back.

A custom tool is offered as a function with one argument, the text `input`. The tools of a namespace are offered
separately, with its name as a prefix. Tools of other types run at OpenAI: answers are made without them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pydantic_core
from msgspec import UNSET, Raw, UnsetType
from msgspec.json import encode

from legato_gateway.errors import BadRequest, Unsupported
from legato_gateway.openai.chat.tool_definitions import MAX_TOOLS, MAX_TOOLS_BYTES
from legato_gateway.serving import ignored
from legato_gateway.serving.bodies import parsing

Fields = dict[str, Any]
_TOOLS = msgspec.json.Decoder(list[Fields] | None)
_CHOICE = msgspec.json.Decoder(str | Fields | None)
_FUNCTION_FIELDS: Final = ("name", "description", "parameters", "strict")
_CUSTOM_FIELDS: Final = ("name", "description", "format")
_EXTRAS: Final = ("defer_loading", "output_schema")  # all tools are offered from the start
_LONGEST_NAME: Final = 128  # characters of a namespace's name, which each of its tools repeats
_PLAIN: Final = "functions"  # stands for no namespace
_INPUT: Final = "input"
_ONE_TEXT: Final = {
    "type": "object",
    "properties": {_INPUT: {"type": "string"}},
    "required": [_INPUT],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A tool under the client's name."""

    name: str
    namespace: str | None = None
    custom: bool = False


@dataclass(frozen=True, slots=True)
class ConvertedTools:
    """A chat's functions as JSON, the path of each in the request, and the tools that they stand for, by name."""

    functions: Raw | UnsetType = UNSET
    places: tuple[str, ...] = ()
    called: Mapping[str, CalledTool] = field(default_factory=dict)


def read(raw: Raw | UnsetType) -> ConvertedTools:
    """Reads the field `tools`. Raises BadRequest, Unsupported with the path of an error."""
    if raw is UNSET:
        return ConvertedTools()
    parsing.check_size(raw, MAX_TOOLS_BYTES, "tools")
    given = parsing.decode(_TOOLS, raw, "tools") or []
    tools = [each for number, tool in enumerate(given) for each in _listed(tool, f"tools[{number}]")]
    if len(tools) > MAX_TOOLS:
        raise BadRequest(f"there are {len(tools)} tools; at most {MAX_TOOLS} are allowed", param="tools")
    functions = [_function(tool, namespace, at) for tool, namespace, at in tools]
    called = {
        chat_name(namespace, name): CalledTool(name, namespace, tool["type"] == "custom")
        for tool, namespace, _ in tools
        if tool.get("type") in ("function", "custom") and isinstance(name := tool.get("name"), str)
    }
    return ConvertedTools(Raw(encode(functions)), tuple(at for _, _, at in tools), called)


def choice(raw: Raw | UnsetType, tools: ConvertedTools) -> Raw | UnsetType:
    """Converts the field `tool_choice` to a chat's. Raises BadRequest, Unsupported."""
    if raw is UNSET:
        return UNSET
    chosen = parsing.decode(_CHOICE, raw, "tool_choice")
    if not isinstance(chosen, dict):
        return raw
    if (kind := chosen.get("type")) not in ("function", "custom"):
        text = f"tool_choice of type {str(kind)[:40]!r} is not supported by this server; only function and custom are"
        raise Unsupported(text, param="tool_choice.type")
    if not isinstance(name := chosen.get("name"), str):
        raise BadRequest("tool_choice.name is missing", param="tool_choice.name")
    tool = tools.called.get(name)
    if tool is None or tool.custom != (kind == "custom"):
        others = [key for key, each in tools.called.items() if (each.name, each.custom) == (name, kind == "custom")]
        if len(others) != 1:
            raise BadRequest(f"tool_choice names a tool that is not offered: {name[:60]!r}", param="tool_choice")
        name = others[0]
    return Raw(encode({"type": "function", "function": {"name": name}}))


def chat_name(namespace: str | None, name: str) -> str:
    """Returns the name of a tool's function: with its namespace, since names of functions are unique."""
    return name if namespace in (None, _PLAIN) else f"{namespace.rstrip('_')}__{name}"


def custom_arguments(input: str) -> str:
    """Returns the arguments of a call of a custom tool."""
    return encode({_INPUT: input}).decode()


def custom_input(arguments: str) -> str:
    """Returns the input of a custom tool; of arguments that were cut off, the part that was written."""
    try:
        given = pydantic_core.from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return arguments
    text = given.get(_INPUT) if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


def _listed(tool: Fields, at: str) -> Iterator[tuple[Fields, str | None, str]]:
    """Yields the tool, or all tools of a namespace, each with its namespace and path."""
    if tool.get("type") != "namespace":
        yield tool, None, at
        return
    name, tools = tool.get("name"), tool.get("tools")
    if not isinstance(name, str) or not isinstance(tools, list):
        raise BadRequest(f"{at}: a namespace has a name and tools", param=at)
    if not 1 <= len(name) <= _LONGEST_NAME:
        raise BadRequest(f"{at}.name has {len(name)} characters (1 to {_LONGEST_NAME})", param=f"{at}.name")
    if tool.get("description"):
        ignored.note(f"{at}.description")
    for number, inner in enumerate(tools):
        here = f"{at}.tools[{number}]"
        if not isinstance(inner, dict) or inner.get("type") not in ("function", "custom"):
            raise BadRequest(f"{here}.type: not a valid type (function, custom)", param=f"{here}.type")
        yield inner, None if name == _PLAIN else name, here


def _function(tool: Fields, namespace: str | None, at: str) -> Fields:
    kind = tool.get("type")
    if kind not in ("function", "custom"):
        return {"type": kind}  # chats are answered without it
    known = _FUNCTION_FIELDS if kind == "function" else _CUSTOM_FIELDS
    _check_others(tool, known, at)
    function = {key: value for key, value in tool.items() if key in known}
    if isinstance(name := tool.get("name"), str):
        function["name"] = chat_name(namespace, name)
    return {"type": "function", "function": function if kind == "function" else _with_one_text(function, at)}


def _with_one_text(tool: Fields, at: str) -> Fields:
    """Returns a custom tool as a function with one text argument.

    A grammar of the input is shown to the model but not enforced: it describes the text, not the JSON around it.
    """
    format, text = tool.pop("format", None) or {}, tool.get("description")
    if not isinstance(format, dict):
        raise BadRequest(f"{at}.format has to be an object", param=f"{at}.format")
    if format.get("type", "text") != "text":
        ignored.note(f"{at}.format")
        grammar = f"The input has to match this grammar ({format.get('syntax')}):\n{format.get('definition')}"
        text = f"{text}\n{grammar}" if text else grammar
    return {**tool, **({"description": text} if text else {}), "parameters": _ONE_TEXT}


def _check_others(tool: Fields, known: tuple[str, ...], at: str) -> None:
    """Raises Unsupported for a field that would change the tool's meaning."""
    for key, value in tool.items():
        if key in ("type", *known) or value is None or value is False:
            continue
        if key == "allowed_callers" and isinstance(value, list) and "direct" in value:
            continue
        if key not in _EXTRAS:
            raise Unsupported(f"{at}.{key[:40]} is not supported by this server", param=f"{at}.{key[:40]}")
        ignored.note(f"{at}.{key}")
