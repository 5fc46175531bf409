"""Calls of DeepSeek V3, R1 and V3.1, and of Kimi K2: a section of calls, whose parts stand between special tokens.

https://huggingface.co/deepseek-ai/DeepSeek-V3.1, https://huggingface.co/moonshotai/Kimi-K2-Instruct
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from legato_gateway.parsers.tool_calls.json_calls import NAME, read_arguments
from legato_gateway.parsers.tool_calls.reading import (
    END,
    Broken,
    Reader,
    first_of,
    one_of,
    partial,
)
from legato_gateway.parsers.tool_calls.said import Said, Schemas


@dataclass(frozen=True, slots=True)
class SectionMarks:
    """Tokens around the section, and before, within and after a call. `name` matches all of a call up to its `{`."""

    section: tuple[str, str]
    begin: str
    separator: str
    end: str
    name: re.Pattern[str]

    @property
    def all(self) -> tuple[str, ...]:
        """The marks, which are shown in the text of an answer."""
        return (*self.section, self.begin, self.separator, self.end)


DEEPSEEK: Final = "DeepSeek"
KIMI: Final = "KimiK2"
FORMATS: Final = MappingProxyType(
    {
        DEEPSEEK: SectionMarks(
            ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            re.compile(rf"(?:function<｜tool▁sep｜>({NAME.pattern})\s+(?:```json)?|({NAME.pattern})<｜tool▁sep｜>)\s*"),
        ),
        KIMI: SectionMarks(
            ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            re.compile(rf"\s*(?:functions\.)?({NAME.pattern})(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*"),
        ),
    }
)
_LONGEST_HEAD: Final = 256
_HOW_TO_CALL: Final = """\
IMPORTANT: ALWAYS adhere to this exact format for tool use:
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>\
{additional_tool_calls}<｜tool▁calls▁end｜>

Where:
- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces"""


def from_template(template: str) -> str | None:
    """Returns the format that a chat template shows, or None."""
    return next((family for family, marks in FORMATS.items() if marks.begin in template), None)


def with_tools(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns messages with the tools in the system message, as DeepSeek V3.1 was trained: its template takes none."""
    if not tools:
        return list(messages)
    described = "".join(map(_described, tools))
    text = f"## Tools\nYou have access to the following tools:\n\n{described}{_HOW_TO_CALL}"
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _described(tool: dict[str, Any]) -> str:
    function = tool["function"]
    parameters = json.dumps(function.get("parameters") or {}, ensure_ascii=False)
    return f"### {function['name']}\nDescription: {function.get('description') or ''}\n\nParameters: {parameters}\n\n"


def reader(family: str) -> Callable[[Said, Schemas], Reader[None]]:
    """Returns the reader of a format."""

    def read(out: Said, _functions: Schemas) -> Reader[None]:
        return (yield from _read(out, FORMATS[family]))

    return read


def _read(out: Said, marks: SectionMarks) -> Reader[None]:
    """Reads the whole answer. Other content between the tokens is text."""
    opens, close = marks.section
    between, held = (opens, marks.begin, close), ""
    while mark := (yield from first_of(between, out.text, held)):
        held = ""
        if mark == close:
            if not out.calls:
                out.text(mark)
            continue
        raw, calls = [mark], out.calls
        try:
            if mark == opens:
                yield from one_of((marks.begin,), raw.append)
            yield from _call(out, marks, raw)
        except Broken as broken:
            held = broken.char
            if out.calls == calls:
                read = "".join(raw) + broken.char
                size = partial(read, between)
                out.text(read[: len(read) - size], size)
                held = read[len(read) - size :]
                continue
        mark = yield from first_of((marks.end, *between), _ignore, held)
        held = mark if mark in (opens, marks.begin) else ""


def _call(out: Said, marks: SectionMarks, raw: list[str]) -> Reader[None]:
    """Reads a name and arguments. Raises Broken; until the call starts, `raw` collects its text."""
    head = ""
    while (char := (yield)) != "{":
        if char == END or len(head) == _LONGEST_HEAD:
            raise Broken(char)
        head += char
        raw.append(char)
    match = marks.name.fullmatch(head)
    if match is None:
        raise Broken(char)
    out.start(next(name for name in match.groups() if name))
    yield from read_arguments(out)


def _ignore(_: str, _behind: int) -> None:
    """Drops text between arguments and the end of their call."""
