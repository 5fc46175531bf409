"""Calls of Phi-4-mini and Granite 3: a mark, and a JSON list of {"name": ..., "arguments": ...}.

Their chat templates do not write earlier calls, and Phi-4-mini's takes the tools as a part of the system message:
https://huggingface.co/microsoft/Phi-4-mini-instruct, https://huggingface.co/ibm-granite/granite-3.3-8b-instruct
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from legato_gateway.parsers.tool_calls.json_calls import read_array, read_object
from legato_gateway.parsers.tool_calls.reading import SPACE, Broken, Reader, first_of, skip_space
from legato_gateway.parsers.tool_calls.said import Said, Schemas


@dataclass(frozen=True, slots=True)
class ListMarks:
    """Calls come after any of `opens`, and `closes` may follow. Results of calls have the role `result`.

    `ends` is written after earlier calls.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    ends: str
    result: str


MARK: Final = "<|tool_call|>"
PHI4_MINI: Final = "Phi4Mini"
GRANITE: Final = "Granite"
FORMATS: Final = MappingProxyType(
    {
        PHI4_MINI: ListMarks((MARK, "functools"), ("<|/tool_call|>",), "<|/tool_call|>", "tool_response"),
        GRANITE: ListMarks((MARK, "<tool_call>"), ("</tool_call>",), "", "tool"),
    }
)


def from_template(template: str) -> str | None:
    """Returns the format that a chat template shows, or None."""
    if "<|tool|>" in template and "message['tools']" in template:
        return PHI4_MINI
    return GRANITE if MARK in template and "<|start_of_role|>" in template else None


def reader(family: str) -> Callable[[Said, Schemas], Reader[None]]:
    """Returns the reader of a format."""

    def read(out: Said, _functions: Schemas) -> Reader[None]:
        return (yield from _read(out, FORMATS[family]))

    return read


def _read(out: Said, marks: ListMarks) -> Reader[None]:
    """Reads the whole answer. A mark with other content is text."""
    held, called = "", False  # `called`: calls have just ended
    while mark := (yield from first_of((*marks.opens, *marks.closes), out.text, held)):
        held = ""
        if mark in marks.closes:
            if not called:
                out.text(mark)
            called = False
            continue
        space: list[str] = []
        char = yield from skip_space(space.append)
        before, calls = mark + "".join(space[:-1]), out.calls
        try:
            if char == "[":
                yield from read_array(out, before + char)
            elif char == "{":
                held = yield from _objects(out, before)
            else:
                out.text(before, len(char))
                held = char
        except Broken as broken:
            held = broken.char
        called = out.calls > calls


def _objects(out: Said, before: str) -> Reader[str]:
    """Reads calls without a list, from after the first one's bracket. Returns the character that follows. Raises
    Broken."""
    char = "{"
    while char == "{":
        yield from read_object(out, before=before)
        before = ""
        while (char := (yield)) and char in f"{SPACE},;":
            pass
    return char


def template_input(
    family: str, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns messages with their calls as text, and variables for the chat template."""
    written = [_written(message, FORMATS[family]) for message in messages]
    if family != PHI4_MINI or not tools:
        return written, {"tools": list(tools)} if tools else {}
    if not written or written[0]["role"] != "system":
        written.insert(0, {"role": "system", "content": ""})
    shown = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    return [{**written[0], "tools": shown}, *written[1:]], {}


def _written(message: dict[str, Any], marks: ListMarks) -> dict[str, Any]:
    if message["role"] == "tool":
        return {**message, "role": marks.result}
    if calls := [call["function"] for call in message.get("tool_calls", ())]:
        return {**message, "content": f"{message['content']}{MARK}{json.dumps(calls, ensure_ascii=False)}{marks.ends}"}
    return message
