"""Calls that are required, and arguments that are strict: grammars that a worker holds answers to."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pydantic
import pytest
from openai import pydantic_function_tool

from legato_gateway.openai.chat import tool_grammar
from legato_gateway.openai.chat.call_marks import NO_MARKS, CallMarks
from legato_gateway.openai.chat.tool_definitions import Function
from legato_gateway.openai.structured_output import AnswerGrammar
from legato_gateway.parsers.tool_calls.families import FAMILIES, CallParser
from legato_gateway.parsers.tool_calls.said import CallArguments, CallStart, Text
from legato_gateway.request import Delta
from legato_grammar.guidance import Compiler
from legato_grammar.vocabulary import SINGLE_BYTES, Vocabulary
from legato_protocol.sampling.parameters import JSON_SCHEMA, REGEX, RULES

PLACE = "tools[{}].function"
CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/Name"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"Name": {"type": "string", "description": "100 % of a ::= b"}},
}
WEATHER = Function("get_weather", parameters=CITY, strict=True)
NOW = Function("now")
PARIS = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
NO_CITY = '{"name": "get_weather", "arguments": {"city": 5}}'
NO_TIME = '{"name": "now", "arguments": {}}'
ANSWER = AnswerGrammar(JSON_SCHEMA, '{"type": "object", "properties": {"x": {"type": "integer"}}}', "response_format")


def tag(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


def matches(grammar: AnswerGrammar, text: str, marks: CallMarks = NO_MARKS, as_text: bool = False) -> bool:
    """True if the grammar accepts the text as a whole answer. Special tokens are written as such, or `as_text`."""
    tokens = (*SINGLE_BYTES.tokens, *(mark.encode() for mark in marks.special))
    vocabulary = Vocabulary(tokens, frozenset(marks.special.values()))
    matcher = Compiler(vocabulary).compile(grammar.kind, grammar.source).matcher()
    parts = [text] if as_text else re.split(f"({'|'.join(map(re.escape, marks.special))})", text)
    written = [id for part in parts for id in ([marks.special[part]] if part in marks.special else part.encode())]
    return matcher.consume(written) and matcher.accepting


def qwen3_coder(name: str, arguments: dict[str, str]) -> str:
    given = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return tag(f"<function={name}>\n{given}</function>")


def glm(name: str, arguments: dict[str, str]) -> str:
    given = (f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{''.join(given)}</tool_call>"


TAGGED = {"Qwen3Coder": qwen3_coder, "GLM": glm}
LLAMA = [text.replace("arguments", "parameters") for text in (PARIS, f"{PARIS}; {NO_TIME}", NO_CITY)]
LISTS = [f"[{PARIS}]", f"[{PARIS}, {NO_TIME}]", f"[{NO_CITY}]"]
MADE = [("get_weather", '{"city": "Paris"}'), ("now", "{}"), ("get_weather", '{"city": 5}')]
KIMI = [
    f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
    for number, (name, arguments) in zip((4, 5, 4), MADE, strict=True)
]
V3 = [
    f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
    for name, arguments in MADE
]
V31 = [f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>" for name, arguments in MADE]
NAMED = [f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in MADE]
WITH_IDS = [each.replace("[ARGS]", "[CALL_ID]VvvODy9mT[ARGS]") for each in NAMED]


def section(calls: Sequence[str], opens: str, closes: str, between: str = "") -> list[str]:
    return [f"{opens}{each}{closes}" for each in (calls[0], between.join(calls[:2]), calls[2])]


DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
REQUIRED = {  # by family and version: one call, two, and one whose arguments are wrong
    "Hermes": [tag(PARIS), f"{tag(PARIS)}\n{tag(NO_TIME)}", tag(NO_CITY)],
    "Llama3Json": LLAMA,
    "Mistral": [f"[TOOL_CALLS]{each}" for each in LISTS],
    "Mistral v3": [f"[TOOL_CALLS] {each}".replace("}}", '}, "id": "VvvODy9mT"}') for each in LISTS],
    "Mistral v11": section(WITH_IDS, "", ""),
    "Mistral v13": section(NAMED, "", ""),
    "Pythonic": LISTS,
    "Phi4Mini": [f"<|tool_call|>{each}<|/tool_call|>" for each in LISTS],
    "DeepSeek V3": section(V3, *DEEPSEEK, "\n"),
    "DeepSeek V3.1": section(V31, *DEEPSEEK),
    "GLM": LISTS,  # tags cannot enforce the reference in CITY
    "KimiK2": section(KIMI, "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    "Granite": [f"<|tool_call|>{each}" for each in LISTS],
    "Gemma": LISTS,
    "Qwen3Coder": LISTS,
}
LATER = ("Mistral v11", "Mistral v13")  # their vocabularies have more marks


def marks(version: str, are_special: bool) -> CallMarks:
    """The marks of a format after four calls, special tokens behind the single bytes."""
    markers = FAMILIES[version.split()[0]].markers
    given = markers if version in LATER else markers[:1] if version.startswith("Mistral") else markers
    return CallMarks({mark: 256 + at for at, mark in enumerate(given)} if are_special else {}, earlier=4)


@pytest.mark.parametrize("are_special", [True, False])
@pytest.mark.parametrize("version", REQUIRED)
def test_required_calls_are_of_the_schema_and_are_read_again(version, are_special):
    if version in LATER and not are_special:
        return
    (one, two, wrong), family, written = REQUIRED[version], version.split()[0], marks(version, are_special)
    functions = {0: WEATHER, 1: NOW}
    several = tool_grammar.required(functions, PLACE, family, True, written)
    found = [matches(several, text, written) for text in (one, two, wrong, "It rains.", "")]
    assert found == [True, True, False, False, False]
    assert matches(several, one, written, as_text=True) == (not any(mark in one for mark in written.special))
    single = tool_grammar.required(functions, PLACE, family, False, written)
    assert (matches(single, one, written), matches(single, two, written)) == (True, False)
    assert not matches(tool_grammar.required({1: NOW}, PLACE, family, True, written), one, written)
    parser = CallParser(tool_grammar.required_format(family, functions.values()), {"get_weather": CITY, "now": None})
    pieces = [piece for char in two for piece in parser.push(char)] + parser.finish()
    assert not [piece for piece in pieces if isinstance(piece, Text)]
    assert [piece.name for piece in pieces if isinstance(piece, CallStart)] == ["get_weather", "now"]
    arguments = "".join(piece.text for piece in pieces if isinstance(piece, CallArguments) and piece.index == 0)
    assert json.loads(arguments) == {"city": "Paris"}


UNITS = {"type": "string", "enum": ["°C", "°F"]}
TAGS = {"type": "array", "items": {"type": "string"}}
PLAIN = {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": UNITS, "tags": TAGS}
FORECAST = Function("forecast", parameters={"type": "object", "properties": PLAIN, "required": ["city"]})
CALLS = [  # a call in tags, and its arguments; None: it breaks the schema
    (
        {"city": "\nKöln </function>\n", "days": "3", "unit": "°C"},
        {"city": "\nKöln </function>\n", "days": 3, "unit": "°C"},
    ),
    ({"city": ""}, {"city": ""}),
    (
        {"city": "Bonn", "tags": '["a</parameter>", "\\"</parameter>"]'},
        {"city": "Bonn", "tags": ["a</parameter>", '"</parameter>']},
    ),
    ({"city": "a</parameter>b"}, None),  # would end there
    ({"city": "\n</function>\n</tool_call>"}, None),
    ({"days": "3"}, None),
    ({"city": "Bonn", "days": "some"}, None),
    ({"city": "Bonn", "unit": "K"}, None),
    ({"city": "Bonn", "wind": "3"}, None),
]


AS_GLM = re.compile(r"</parameter>|\n</function>\n</tool_call>")


@pytest.mark.parametrize("are_special", [True, False])
@pytest.mark.parametrize("family", TAGGED)
def test_required_calls_in_tags_have_the_arguments_of_the_schema(family, are_special):
    written = marks(family, are_special)
    grammar = tool_grammar.required({0: FORECAST, 1: NOW}, PLACE, family, True, written)
    schemas = {"forecast": FORECAST.parameters, "now": None}
    for given, arguments in CALLS:
        if family == "GLM":
            given = {key: AS_GLM.sub("</arg_value>", value) for key, value in given.items()}
            arguments = arguments and json.loads(json.dumps(arguments).replace("</parameter>", "</arg_value>"))
        if arguments and any(mark in value for mark in written.special for value in given.values()):
            continue  # only text within JSON can look like a mark
        text = f"{TAGGED[family]('forecast', given)}\n{TAGGED[family]('now', {})}"
        assert matches(grammar, text, written) == (arguments is not None), given
        parser = CallParser(tool_grammar.required_format(family, (FORECAST, NOW)), schemas)
        pieces = [piece for char in text for piece in parser.push(char)] + parser.finish()
        read = "".join(piece.text for piece in pieces if isinstance(piece, CallArguments) and piece.index == 0)
        assert arguments is None or json.loads(read) == arguments


@pytest.mark.parametrize(
    ("argument", "more"),
    [
        ({"pattern": "a"}, {}),
        ({"type": ["string", "null"]}, {}),
        ({"$ref": "#/$defs/Name"}, {"$defs": {"Name": {}}}),
        ({"enum": [1, "a"]}, {}),
        ({"enum": ["</parameter>"]}, {}),
        ({}, {"minProperties": 1}),
    ],
)
def test_what_tags_cannot_enforce_is_required_as_json(argument, more):
    function = Function("f", parameters={"properties": {"a": {"type": "string", **argument}}, **more})
    assert tool_grammar.required_format("Qwen3Coder", [function, NOW]) == "Array"


STRICT = {  # whether an answer is allowed with a strict function: as text and calls, or with a schema for its text
    True: [
        "It rains.",
        "",
        "a < b <tool",
        f"A moment.\n{tag(PARIS)}",
        f"{tag(PARIS)}\n<tool_call>{NO_TIME}</tool_call>",
    ],
    False: [tag(NO_CITY), f"{tag(PARIS)}\n{tag(NO_CITY)}", "<tool_call>", tag('{"name": "other", "arguments": {}}')],
}
WITH_SCHEMA = {True: ['{"x": 1}', tag(PARIS)], False: ["It rains.", '{"x": "1"}', tag(NO_CITY)]}


@pytest.mark.parametrize(("answer", "texts"), [(None, STRICT), (ANSWER, WITH_SCHEMA)], ids=["text", "schema"])
def test_strict_calls_or_an_answer(answer, texts):
    grammar = tool_grammar.optional([WEATHER, NOW], PLACE, "Hermes", answer)
    found = {allowed: [text for text in texts[allowed] if matches(grammar, text)] for allowed in texts}
    assert found == {True: texts[True], False: []}


def test_nothing_is_constrained_that_need_not_be():
    assert tool_grammar.optional([NOW], PLACE, "Hermes", None) is None
    assert tool_grammar.optional([NOW], PLACE, "Mistral", None) is None
    pattern = AnswerGrammar(REGEX, "a+", "guided_regex")
    assert tool_grammar.optional([NOW], PLACE, "Hermes", pattern) is pattern


def test_a_schema_that_cannot_be_obeyed_is_refused_only_where_it_is_strict():
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    loose = tool_grammar.required({3: Function("f", parameters=schema)}, PLACE, "Hermes", several=False)
    assert matches(loose, tag('{"name": "f", "arguments": {"a": [1, 1]}}'))
    with pytest.raises(Exception, match=r"tools\[3\]\.function\.parameters: at \$\.properties\.a: .*uniqueItems"):
        tool_grammar.required({3: Function("f", parameters=schema, strict=True)}, PLACE, "Hermes", several=False)


@pytest.mark.parametrize(
    ("schema", "arguments", "allowed"),
    [
        (None, {}, True),
        (None, {"x": 1}, False),
        ({"type": "object", "properties": {"a": {}}}, {"a": 1}, True),
        ({"type": "object", "properties": {"a": {}}}, {"b": 1}, False),
        ({"properties": {"a": {}}}, {"b": 1}, False),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": True}, {"b": 1}, True),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, {"b": 1}, True),
        ({"type": "object", "required": [["a"]]}, {"b": 1}, True),
        ({"type": "object", "anyOf": [{"properties": {"b": {}}, "required": ["b"]}]}, {"b": 1}, True),
    ],
)
def test_calls_have_the_arguments_that_are_named_unless_the_schema_has_others(schema, arguments, allowed):
    grammar = tool_grammar.required({0: Function("f", parameters=schema)}, PLACE, "Mistral", several=False)
    assert matches(grammar, f"[TOOL_CALLS]{json.dumps([{'name': 'f', 'arguments': arguments}])}") == allowed


async def test_a_function_that_is_named_is_called_once(gateway):
    gateway.script(Delta(0, f"{tag(NO_TIME)}\n{tag(NO_TIME)}"), Delta(0, "", (), "stop"))
    function = {"type": "function", "function": {"name": "now"}}
    for choice, several in (("required", True), (function, False)):
        answer = await gateway.chat(tools=[function], tool_choice=choice)
        assert len(answer.json()["choices"][0]["message"]["tool_calls"]) == (2 if several else 1)
        params = gateway.relay.requests[-1].params
        grammar = AnswerGrammar(params.grammar_kind, params.grammar, "tool_choice")
        assert matches(grammar, tag(NO_TIME))
        assert matches(grammar, f"{tag(NO_TIME)}\n{tag(NO_TIME)}") == several


async def test_required_calls_have_the_vocabularys_marks_and_count_on(make):
    gateway = make(template="{{ tools }}", marks=("<|tool_call_begin|>",), tool_call_parser="KimiK2")
    gateway.script(Delta(0, "", (), "stop"))
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": "noon"}]
    tools = [{"type": "function", "function": {"name": "now"}}]
    await gateway.chat(messages=messages, tools=tools, tool_choice="required")
    grammar = gateway.relay.requests[-1].params.grammar
    assert all(part in grammar for part in ("<[257]> first", 'first: "functions.now:" "1" '))


async def test_the_older_form_requires_a_call_too(gateway):
    gateway.script(Delta(0, tag(NO_TIME)), Delta(0, "", (), "stop"))
    answer = (await gateway.chat(functions=[{"name": "now"}], function_call={"name": "now"})).json()["choices"][0]
    assert answer["message"]["function_call"] == {"name": "now", "arguments": "{}"}
    assert "now" in gateway.relay.requests[-1].params.grammar


async def test_strict_is_refused_by_name_where_a_format_cannot_be_held(make):
    gateway = make(template="{{ tools }}", tool_call_parser="Pythonic")
    tools = [{"type": "function", "function": {"name": "f", "strict": True}}]
    error = (await gateway.chat(tools=tools)).json()["error"]
    assert (error["param"], error["code"]) == ("tools[0].function.strict", "unsupported_value")
    assert (await gateway.chat(tools=tools, tool_choice="required")).status_code == 200


class GetWeather(pydantic.BaseModel):
    """The weather of a city."""

    city: str


async def test_the_official_clients_strict_tools_are_parsed(gateway):
    tool: Any = pydantic_function_tool(GetWeather)
    call = tag('{"name": "GetWeather", "arguments": {"city": "Paris"}}')
    gateway.script(Delta(0, call), Delta(0, "", (), "stop"))
    messages: Any = [{"role": "user", "content": "hi"}]
    answer = await gateway.client.chat.completions.parse(model="tiny", messages=messages, tools=[tool])
    (made,) = answer.choices[0].message.tool_calls
    assert made.function.parsed_arguments == GetWeather(city="Paris")
    params = gateway.relay.requests[-1].params
    assert (params.grammar_kind, "city" in params.grammar, "TEXT" in params.grammar) == (RULES, True, True)
    gateway.script(*(Delta(0, char) for char in call), Delta(0, "", (), "stop"))
    async with gateway.client.chat.completions.stream(model="tiny", messages=messages, tools=[tool]) as stream:
        done = [event async for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = await stream.get_final_completion()
    assert done[0].parsed_arguments == GetWeather(city="Paris")
    assert final.choices[0].finish_reason == "tool_calls"
