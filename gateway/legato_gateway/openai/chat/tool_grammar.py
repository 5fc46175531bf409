"""Grammars of answers with calls: for required calls, and for `strict` arguments.

A required call is in the model's own format if a grammar can hold that to the schema, else in a JSON array. The name
comes first either way, so that arguments can be sent while they are written.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from legato_gateway.errors import BadRequest, Unsupported
from legato_gateway.openai import structured_output
from legato_gateway.openai.chat import call_layouts, harmony_grammar, tag_grammar
from legato_gateway.openai.chat.call_marks import NO_MARKS, CallMarks
from legato_gateway.openai.structured_output import AnswerGrammar
from legato_gateway.parsers.harmony import tokens as harmony
from legato_gateway.parsers.tool_calls import hermes
from legato_gateway.parsers.tool_calls.families import ARRAY
from legato_grammar import lark
from legato_protocol.sampling.parameters import JSON_SCHEMA, RULES

_ANY: Final[Mapping[str, Any]] = {"type": "object"}
_NOTHING: Final[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}
# Keywords that let an object have properties which its `properties` do not name.
_OPENING: Final = {"additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties"} | {
    *("dependentSchemas", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if")
}
_GAP: Final = r"GAP: /[ \t\r\n]{1,8}/"


class Function(msgspec.Struct, frozen=True):
    """A function that a request offers."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class FunctionPaths:
    """Paths of functions in a request, by number."""

    template: str
    numbers: Sequence[int]

    def format(self, number: int) -> str:
        return self.template.format(self.numbers[number])


def required_format(family: str, functions: Iterable[Function]) -> str:
    """Returns the format in which a model writes required calls of these functions."""
    if family in tag_grammar.LAYOUTS:
        return family if all(tag_grammar.enforces(family, _whole(each)) for each in functions) else ARRAY
    return family if family in (*call_layouts.FAMILIES, harmony.FAMILY) else ARRAY


def required(
    functions: Mapping[int, Function], place: FunctionPaths, family: str, several: bool, marks: CallMarks = NO_MARKS
) -> AnswerGrammar:
    """Returns the grammar of one of these calls and, with `several`, more of them. `place` maps numbers to paths.

    Raises BadRequest with the path of a schema that cannot be enforced.
    """
    written = required_format(family, functions.values())
    if written == harmony.FAMILY:
        return harmony_grammar.required(_names(functions), _argument_rules(functions, place), "tool_choice")
    if written in tag_grammar.LAYOUTS:
        schemas = {each.name: _whole(each) for each in functions.values()}
        return _required(lambda marks: tag_grammar.rules(written, schemas, marks, several), marks)
    names, arguments = _names(functions), _argument_rules(functions, place)
    return _required(lambda marks: [*call_layouts.rules(written, names, marks, several), *arguments], marks)


def _required(rules: Callable[[CallMarks], Iterable[str]], marks: CallMarks) -> AnswerGrammar:
    checked = _checked(list(rules(dataclasses.replace(marks, as_text=True))), "tool_choice")
    return dataclasses.replace(checked, source="\n".join(rules(marks)) + "\n")


def optional(
    functions: Sequence[Function], place: FunctionPaths, family: str, answer: AnswerGrammar | None
) -> AnswerGrammar | None:
    """Returns the grammar of an answer that is text or matches `answer`, and of calls; None without constraints.

    Raises BadRequest with the path of a schema that cannot be enforced, or of `strict` if the format rules it out.
    """
    strict = next((number for number, each in enumerate(functions) if each.strict), None)
    if family == harmony.FAMILY and (strict is not None or answer is not None):
        numbered = dict(enumerate(functions))
        param = answer.param if answer is not None else "tools"
        return harmony_grammar.optional(_names(numbered), _argument_rules(numbered, place), answer, param)
    if family != "Hermes":
        if strict is not None:
            at = f"{place.format(strict)}.strict"
            text = f"{at}: not supported for this model's calls unless tool_choice requires one"
            raise Unsupported(text, param=at)
        return answer
    if strict is None and answer is None:
        return None
    if answer is not None and answer.kind != JSON_SCHEMA:
        return answer
    objects = [*_objects(dict(enumerate(functions)), place), _GAP]
    if answer is not None:
        call = f'call: "{hermes.OPEN}" GAP? object GAP? "{hermes.CLOSE}"'
        rules = ["start: answer | call (GAP? call)*", f"answer: {lark.schema(json.loads(answer.source))}", call]
        return _checked([*rules, *objects], answer.param)
    rules = ["start: call* TEXT", f'open[lazy]: TEXT "{hermes.OPEN}"', r"TEXT: /(.|\n)*/"]
    return _checked([*rules, f'call: open GAP? object GAP? "{hermes.CLOSE}"', *objects], "tools")


def _objects(functions: Mapping[int, Function], place: FunctionPaths) -> list[str]:
    """Returns rules for `object`: a call as JSON, its name first. Each schema is separate, with its own references."""
    rules = ["object: " + " | ".join(f"function_{number}" for number in functions)]
    for number, function in functions.items():
        begin = lark.literal(f'{{"name": {json.dumps(function.name)}, "arguments": ')
        rules.append(f'function_{number}: {begin} arguments_{number} "}}"')
    return [*rules, *_argument_rules(functions, place)]


def _argument_rules(functions: Mapping[int, Function], place: FunctionPaths) -> list[str]:
    """Returns a rule for the arguments of each function, by its number."""
    return [
        f"arguments_{number}: {lark.schema(_arguments(function, f'{place.format(number)}.parameters'))}"
        for number, function in functions.items()
    ]


def _names(functions: Mapping[int, Function]) -> dict[int, str]:
    return {number: function.name for number, function in functions.items()}


def _arguments(function: Function, at: str) -> Mapping[str, Any]:
    """Returns the schema of the arguments: any object's if it cannot be enforced in full and is not `strict`."""
    schema = _whole(function)
    try:
        structured_output.check(AnswerGrammar(JSON_SCHEMA, json.dumps(schema), at))
    except BadRequest:
        if function.strict:
            raise
        return _ANY
    return schema


def _whole(function: Function) -> Mapping[str, Any]:
    """Returns the schema of an object of arguments.

    A function only takes the arguments that it names, unless its schema says that there may be others.
    """
    given = function.parameters
    return _closed(given if "type" in given else {**given, "type": "object"}) if given else _NOTHING


def _closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    named, required = schema.get("properties", {}), schema.get("required", [])
    plain = isinstance(named, dict) and isinstance(required, list) and schema["type"] == "object"
    if not plain or _OPENING & schema.keys() or any(not isinstance(key, str) or key not in named for key in required):
        return schema
    return {**schema, "properties": named, "additionalProperties": False}


def _checked(rules: Sequence[str], param: str) -> AnswerGrammar:
    made = AnswerGrammar(RULES, "\n".join(rules) + "\n", param)
    structured_output.check(made)
    return made
