"""Reads the tools that a request offers: `tools` and `tool_choice`, or the older `functions` and `function_call`.

`constraint` turns required calls into a grammar.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Raw

from legato_gateway.errors import BadRequest, Unsupported
from legato_gateway.openai.chat import tool_grammar
from legato_gateway.openai.chat.call_marks import CallMarks
from legato_gateway.openai.chat.tool_grammar import Function, FunctionPaths
from legato_gateway.openai.schemas import ChatBody
from legato_gateway.openai.structured_output import AnswerGrammar
from legato_gateway.parsers.tool_calls.families import FAMILIES
from legato_gateway.parsers.tool_calls.json_calls import NAME
from legato_gateway.parsers.tool_calls.said import Schemas
from legato_gateway.serving import ignored
from legato_gateway.serving.bodies import parsing

MAX_TOOLS: Final = 1024  # OpenAI allows 128, which agents with several MCP servers exceed
MAX_TOOLS_BYTES: Final = 1 << 19  # of JSON


class Tool(msgspec.Struct, frozen=True):
    type: str
    function: Function | None = None  # if the type is function


class _Named(msgspec.Struct, frozen=True):
    name: str


class _NamedTool(msgspec.Struct, frozen=True):
    type: str
    function: _Named


Tools = Annotated[tuple[Tool, ...], Meta(max_length=MAX_TOOLS)]
Functions = Annotated[tuple[Function, ...], Meta(max_length=MAX_TOOLS)]
_TOOLS = msgspec.json.Decoder(Tools)
_FUNCTIONS = msgspec.json.Decoder(Functions)
_CHOICE = msgspec.json.Decoder(str | _NamedTool | None)
_FUNCTION_CHOICE = msgspec.json.Decoder(str | _Named | None)
_ANYTHING = msgspec.json.Decoder(list[dict[str, Any]])


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The functions that may be called, and the formats of calls in the model's text and in the answer.

    `older` answers with `function_call`; `written` is a format other than the family's own.
    """

    family: str
    functions: Schemas
    parallel: bool = True
    older: bool = False
    written: str = ""


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The functions that a model may call, if any. `grammar` constrains the answer, if anything does.

    `shown` are the definitions for the chat template, as the client wrote them.
    """

    calls: CallFormat | None = None
    shown: tuple[dict[str, Any], ...] = ()
    grammar: AnswerGrammar | None = None


def offered(
    body: ChatBody, family: str | None, why_not: str, answer: AnswerGrammar | None, marks: CallMarks
) -> OfferedTools:
    """Returns the tools that `body` offers. Raises BadRequest with the path of an error.

    `family` is the model's format of calls; None if it has none, for the reason `why_not`. `answer` is the grammar of
    an answer without calls, `marks` how the format's marks are written.
    """
    older = _given(body.functions)
    if older and _given(body.tools):
        raise BadRequest("functions cannot be given with tools, of which they are the older form", param="functions")
    param = "functions" if older else "tools"
    functions, shown, numbers = _functions(body.functions) if older else _tools(body.tools)
    choice = _choice(body, older)
    if choice == "required" and not functions:
        if not older and _given(body.tools):
            raise Unsupported("tool_choice requires a call, but no tool is a function", param="tool_choice")
        choice = "auto"  # clients also send it without any
    _check_required(older, choice, {function.name for function in functions})
    _check_required(not older, _choice(body, not older), set())  # the other form's choice, without functions
    if family is None and functions and choice != "none":
        raise Unsupported(f"{param} are not supported by this server: {why_not}", param=param)
    place = FunctionPaths("functions[{}]" if older else "tools[{}].function", numbers)
    _check_functions(functions, family, place)
    if not functions or family is None or choice == "none":
        return OfferedTools(grammar=answer)
    parallel = not older and body.parallel_tool_calls is not False and not choice.startswith(":")
    schemas = {function.name: function.parameters for function in functions}
    calls = CallFormat(family, schemas, parallel, older)
    if choice == "auto":
        return OfferedTools(calls, tuple(shown), tool_grammar.optional(functions, place, family, answer))
    callable = {number: each for number, each in enumerate(functions) if choice in ("required", f":{each.name}")}
    grammar = tool_grammar.required(callable, place, family, parallel, marks)
    calls = dataclasses.replace(calls, written=tool_grammar.required_format(family, callable.values()))
    return OfferedTools(calls, tuple(shown), grammar)


def _given(raw: Raw | msgspec.UnsetType) -> bool:
    return raw is not UNSET and bytes(memoryview(raw)[:16]).strip() not in (b"null", b"[]")


_Functions = tuple[tuple[Function, ...], list[dict[str, Any]], Sequence[int]]  # with their numbers in the request


def _tools(raw: Raw | msgspec.UnsetType) -> _Functions:
    """Returns the functions among the tools: agents also send other tools, and cannot switch them off."""
    if not _given(raw):
        return (), [], ()
    json = _bounded(raw, "tools")
    functions: dict[int, Function] = {}
    tools: tuple[Tool, ...] = parsing.decode(_TOOLS, json, "tools")
    for number, tool in enumerate(tools):
        if tool.type != "function":
            ignored.note(f"tools[{number}]")
        elif tool.function is None:
            raise BadRequest(f"tools[{number}].function is missing", param=f"tools[{number}].function")
        else:
            functions[number] = tool.function
    shown = parsing.decode(_ANYTHING, json, "tools")
    return tuple(functions.values()), [shown[number] for number in functions], tuple(functions)


def _functions(raw: Raw | msgspec.UnsetType) -> _Functions:
    json = _bounded(raw, "functions")
    functions = parsing.decode(_FUNCTIONS, json, "functions")
    shown = parsing.decode(_ANYTHING, json, "functions")
    return functions, [{"type": "function", "function": function} for function in shown], range(len(shown))


def _bounded(raw: Raw | msgspec.UnsetType, param: str) -> Raw:
    assert raw is not UNSET
    parsing.check_size(raw, MAX_TOOLS_BYTES, param)
    return raw


def _choice(body: ChatBody, older: bool) -> str:
    """Returns none, auto, required, or a colon and a function's name."""
    raw, param = (body.function_call, "function_call") if older else (body.tool_choice, "tool_choice")
    if raw is UNSET:
        return "auto"
    chosen: Any = parsing.decode(_FUNCTION_CHOICE if older else _CHOICE, raw, param)
    if isinstance(chosen, _Named):
        return f":{chosen.name}"
    if isinstance(chosen, _NamedTool):
        return f":{chosen.function.name}"
    allowed = ("none", "auto") if older else ("none", "auto", "required")
    if chosen is None or chosen in allowed:
        return chosen or "auto"
    raise BadRequest(f"not a valid {param}: {chosen[:40]!r} ({', '.join(allowed)}, or a function)", param=param)


def _check_required(older: bool, choice: str, names: set[str]) -> None:
    """Raises BadRequest if a required call has no function. Other choices may come without functions."""
    if choice in ("none", "auto"):
        return
    param = "function_call" if older else "tool_choice"
    if not names:
        raise BadRequest(f"{param} needs {'functions' if older else 'tools'}", param=param)
    if choice.startswith(":") and choice[1:] not in names:
        raise BadRequest(f"{param} names a function that is not offered: {choice[1:60]!r}", param=param)


def _check_functions(functions: tuple[Function, ...], family: str | None, place: FunctionPaths) -> None:
    allowed = FAMILIES[family].name if family is not None else NAME
    seen: set[str] = set()
    for number, function in enumerate(functions):
        at = place.format(number)
        if not allowed.fullmatch(function.name):
            text = f"not a valid name: {function.name[:40]!r} (calls of this model carry {allowed.pattern})"
            raise BadRequest(f"{at}.name: {text}", param=f"{at}.name")
        if function.name in seen:
            raise BadRequest(f"{at}.name: {function.name[:40]!r} is offered twice", param=f"{at}.name")
        seen.add(function.name)
