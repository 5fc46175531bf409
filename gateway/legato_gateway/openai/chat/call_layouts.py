"""Layouts of required calls whose arguments are JSON, as rules of grammars. Each call's name precedes its arguments."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from legato_gateway.openai.chat.call_marks import CallMarks
from legato_gateway.parsers.tool_calls import hermes, mistral
from legato_gateway.parsers.tool_calls.families import ARRAY
from legato_gateway.parsers.tool_calls.marked_list import FORMATS as LISTS
from legato_gateway.parsers.tool_calls.marked_list import MARK
from legato_gateway.parsers.tool_calls.sections import DEEPSEEK, KIMI
from legato_gateway.parsers.tool_calls.sections import FORMATS as SECTIONS
from legato_grammar import lark

FAMILIES: Final = ("Hermes", "Llama3Json", "Mistral", *LISTS, *SECTIONS, ARRAY)
_ID_KEY: Final = lark.literal(', "id": "')
_ID: Final = "/[a-zA-Z0-9]{9}/"
_INDEX: Final = "/[1-9][0-9]{0,3}/"


@dataclass(frozen=True, slots=True)
class _Around:
    """Rules for text before, between and after all calls, and before and after each."""

    first: str = ""
    between: str = ""
    last: str = ""
    before: str = ""
    after: str = ""


def rules(family: str, names: Mapping[int, str], marks: CallMarks, several: bool) -> list[str]:
    """Returns rules for an answer: one of these calls and, with `several`, more of them.

    The arguments of the function with number N have the rule `arguments_N`.
    """
    around = _around(family, marks)
    call = f"{around.before} {{}} {around.after}"
    first, other = ("first", "other") if family == KIMI else ("function", "function")
    more = f"({around.between} {call.format(other)})*" if several else ""
    start = f"start: {around.first} {call.format(first)} {more} {around.last}"
    if family != KIMI:
        return [start, _choice("function", family, names, marks)]
    given = _choice("first", family, names, marks, str(marks.earlier))
    return [start, given, *([_choice("other", family, names, marks)] if several else [])]


def _around(family: str, marks: CallMarks) -> _Around:
    if family in SECTIONS:
        section = SECTIONS[family]
        first, last, before, after = map(marks.write, (*section.section, section.begin, section.end))
        return _Around(first, '"\\n"?' if family == DEEPSEEK else "", last, before, after)
    if family in LISTS:
        return _Around(f'{marks.write(MARK)} "["', '", "', f'"]" {marks.write(LISTS[family].ends)}')
    match family:
        case "Hermes":
            opens, closes = marks.write(f"{hermes.OPEN}\n"), marks.write(f"\n{hermes.CLOSE}")
            return _Around(between='"\\n"', before=opens, after=closes)
        case "Llama3Json":
            return _Around(between='"; "')
        case "Mistral" if mistral.ARGUMENTS in marks.special:
            return _Around(before=marks.write(mistral.OPEN))
        case "Mistral":
            return _Around(f'{marks.write(mistral.OPEN)} " "? "["', '", "', '"]"')
        case _:
            return _Around('"["', '", "', '"]"')


def _choice(rule: str, family: str, names: Mapping[int, str], marks: CallMarks, index: str = "") -> str:
    calls = [_call(family, name, f"arguments_{number}", marks, index) for number, name in names.items()]
    return f"{rule}: {' | '.join(calls)}"


def _call(family: str, name: str, arguments: str, marks: CallMarks, index: str) -> str:
    """Formats a call of one function. `index` is its number in the conversation; empty: any but the first."""
    if family == KIMI:
        number = lark.literal(index) if index else _INDEX
        return f"{lark.literal(f'functions.{name}:')} {number} {marks.write(SECTIONS[family].separator)} {arguments}"
    if family == DEEPSEEK:
        separator = SECTIONS[family].separator  # V3 and R1 name the kind of call before it; V3.1, the function
        older = f'{marks.write(f"function{separator}{name}")} "\\n```json\\n" {arguments} "\\n```"'
        return f"{older} | {marks.write(f'{name}{separator}')} {arguments}"
    if family == "Mistral" and mistral.ARGUMENTS in marks.special:
        id = f"({marks.write(mistral.CALL_ID)} {_ID})? " if mistral.CALL_ID in marks.special else ""
        return f"{lark.literal(name)} {id}{marks.write(mistral.ARGUMENTS)} {arguments}"
    key = "parameters" if family == "Llama3Json" else "arguments"
    id = f'({_ID_KEY} {_ID} "\\"")? ' if family == "Mistral" else ""
    begin = lark.literal(f'{{"name": {json.dumps(name)}, "{key}": ')
    return f'{begin} {arguments} {id}"}}"'
