"""The formats of models' calls, chosen by the model's chat template or by a setting, and the input of the template."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from legato_gateway.parsers.harmony import channels
from legato_gateway.parsers.harmony import tokens as harmony
from legato_gateway.parsers.tool_calls import (
    gemma,
    glm,
    hermes,
    json_calls,
    llama3_json,
    marked_list,
    mistral,
    preamble,
    pythonic,
    qwen3_coder,
    sections,
)
from legato_gateway.parsers.tool_calls.reading import END, Reader
from legato_gateway.parsers.tool_calls.said import Piece, Said, Schemas

AUTO: Final = "Auto"
OFF: Final = "Off"
_NAMED: Final = "gateway.toolCallParser names it"
_SHOWN: Final = "the chat template shows it"


@dataclass(frozen=True, slots=True)
class Family:
    """One format. `markers` are shown in the text even if they are special tokens; harmony's are marked in it.

    A function's name must match `name`. The special tokens `stops` end an answer.
    """

    read: Callable[[Said, Schemas], Reader[None]]
    markers: tuple[str, ...]
    name: re.Pattern[str]
    stops: tuple[str, ...] = ()


FAMILIES: Final = MappingProxyType(
    {
        "Hermes": Family(hermes.read, hermes.MARKERS, json_calls.NAME),
        "Llama3Json": Family(llama3_json.read, llama3_json.MARKERS, json_calls.NAME),
        "Mistral": Family(mistral.read, mistral.MARKERS, json_calls.NAME),
        "Pythonic": Family(pythonic.read, pythonic.MARKERS, pythonic.NAME),
        "Qwen3Coder": Family(qwen3_coder.read, qwen3_coder.MARKERS, json_calls.NAME),
        **{
            family: Family(marked_list.reader(family), (*marks.opens, *marks.closes), json_calls.NAME)
            for family, marks in marked_list.FORMATS.items()
        },
        **{
            family: Family(sections.reader(family), marks.all, json_calls.NAME)
            for family, marks in sections.FORMATS.items()
        },
        "GLM": Family(glm.read, glm.MARKERS, json_calls.NAME),
        "Gemma": Family(gemma.read, gemma.MARKERS, json_calls.NAME, gemma.STOPS),
        harmony.FAMILY: Family(channels.read, (), json_calls.NAME),
    }
)
ARRAY: Final = "Array"  # no model's own format, but one that a grammar can enforce
_FORMATS = {**FAMILIES, ARRAY: Family(json_calls.read_answer, (), json_calls.NAME)}
SETTINGS: Final = (AUTO, *FAMILIES, OFF)

_PYTHONIC = re.compile(r"func_name\d?\(|tool_call\.name \+ '\('")
_OTHERS = ("<tool_sep>", "<｜tool")  # formats with similar tags


def from_template(template: str | None) -> str | None:
    """Returns the family whose format a chat template shows its model, or None."""
    if template is None:
        return None
    if harmony.in_template(template):
        return harmony.FAMILY
    if gemma.in_template(template):
        return "Gemma"
    if (known := sections.from_template(template)) is not None:
        return known
    if any(mark in template for mark in _OTHERS):
        return None
    if glm.KEY in template:
        return "GLM" if hermes.OPEN in template else None
    if qwen3_coder.FUNCTION in template:
        return "Qwen3Coder" if hermes.OPEN in template and qwen3_coder.PARAMETER in template else None
    if (marked := marked_list.from_template(template)) is not None:
        return marked
    if mistral.OPEN in template:
        return "Mistral"
    if hermes.OPEN in template:
        return "Hermes"
    if _PYTHONIC.search(template):
        return "Pythonic"
    if '"parameters": ' in template and "ipython" in template:
        return "Llama3Json"
    return None


class CallParser:
    """Finds the calls of one answer in pieces of text. It can be pickled until it gets text."""

    def __init__(self, written: str, functions: Schemas, header: str = "") -> None:
        """`written` is a family, or ARRAY; `functions` are those offered. In harmony, the answer continues
        a message with this `header`."""
        self.said = Said()
        self._written = written
        self._functions = functions
        self._header = header
        self._run: Reader[None] | None = None  # starts with the first text: generators cannot be pickled
        self._ended = False

    def push(self, text: str) -> list[Piece]:
        """Returns the new pieces."""
        for at, char in enumerate(text):
            if self._ended:
                self.said.read += len(text) - at
                self.said.text(text[at:])
                break
            self._send(char)
        return self.said.take()

    def finish(self, complete: bool = False) -> list[Piece]:
        """Returns the withheld pieces, at the end of the text, which is `complete` if the model has ended it."""
        self.said.complete = complete
        while not self._ended:
            self._send(END)
        self.said.end()
        return self.said.take()

    def _send(self, char: str) -> None:
        if self._run is None:
            self._run = _FORMATS[self._written].read(self.said, self._functions)
            next(self._run)
            for before in self._header:
                self._run.send(before)
        self.said.read += len(char)
        try:
            self._run.send(char)
        except StopIteration:
            self._ended = True


@dataclass(frozen=True, slots=True)
class ToolSupport:
    """`family` is None if calls cannot be read, for the reason `why_not`.

    `in_template`: the model's chat template takes tools; else they are described in the system message.
    """

    family: str | None = None
    in_template: bool = False
    why_not: str = "tools are switched off (gateway.toolCallParser)"
    why: str = _NAMED
    in_system: bool = True  # the template has system messages
    template_writes_calls: bool = True  # in earlier messages; False only for formats of `marked_list`

    def template_input(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Returns messages and variables for the chat template."""
        if self.in_template and self.family is not None and not self.template_writes_calls:
            return marked_list.template_input(self.family, messages, tools)
        if self.in_template:
            return list(messages), {"tools": list(tools)} if tools else {}
        if self.family == sections.DEEPSEEK:
            return sections.with_tools(messages, tools), {}
        pythonic = self.family == preamble.PYTHONIC
        return preamble.with_tools(messages, tools, self.in_system, pythonic), {}


def for_model(setting: str, template: str | None, takes_tools: bool) -> ToolSupport:
    """Returns the support of a model with this chat template. `setting` is the chosen parser."""
    if setting == OFF:
        return ToolSupport(None, takes_tools)
    known = from_template(template)
    chosen = known if setting == AUTO else setting
    why = _SHOWN if setting == AUTO else _NAMED
    if known in marked_list.FORMATS and "tool_calls" not in (template or "") and chosen == known:
        return ToolSupport(known, True, why=why, template_writes_calls=False)
    if not takes_tools and known == chosen == sections.DEEPSEEK:  # V3.1
        return ToolSupport(known, False, why=why)
    if not takes_tools and setting in (AUTO, preamble.FAMILY):
        return ToolSupport(preamble.FAMILY, False, why="the chat template takes no tools")
    if not takes_tools and setting == preamble.PYTHONIC:
        return ToolSupport(setting, False)
    if not takes_tools:
        text = f"its chat template takes none, and then calls can only be in {preamble.FAMILY} or {preamble.PYTHONIC}"
        return ToolSupport(None, False, f"{text}; gateway.toolCallParser names {setting}")
    names = ", ".join(FAMILIES)
    text = f"the format of the calls of this model is not known; gateway.toolCallParser may name it ({names})"
    return ToolSupport(chosen, True, text, why)
