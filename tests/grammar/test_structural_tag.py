"""Structural tags: which texts match them, and what is refused with the place in it."""

import json
from typing import Any

import pytest

from legato_grammar import structural_tag, validation
from legato_grammar.errors import InvalidGrammar
from legato_grammar.guidance import Compiler
from legato_grammar.structural_format import MAX_LEVELS
from legato_grammar.vocabulary import SINGLE_BYTES
from legato_protocol.sampling_params import RULES

COMPILER = Compiler(SINGLE_BYTES)
INTEGER = {"type": "json_schema", "json_schema": {"type": "integer", "minimum": 0, "maximum": 99}}
CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string"}},
}
ANY_TEXT = {"type": "any_text"}
THINK = {"type": "tag", "begin": "<think>", "content": ANY_TEXT, "end": "</think>"}
F = {"begin": "<f=a>", "content": INTEGER, "end": "</f>"}
G = {"begin": "<f=b>", "content": {"type": "json_schema", "json_schema": CITY}, "end": "</f>"}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tagged(content: Any, end: Any = "</t>") -> dict[str, Any]:
    return {"type": "tag", "begin": "<t>", "content": content, "end": end}


def triggered(**more: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": ["<f="], "tags": [F, G], **more}


def sequence(*elements: Any) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def either(*elements: Any) -> dict[str, Any]:
    return {"type": "or", "elements": list(elements)}


def separated(**more: Any) -> dict[str, Any]:
    return {"type": "tags_with_separator", "tags": [F, G], "separator": ", ", **more}


def dispatch(**more: Any) -> dict[str, Any]:
    return {"type": "dispatch", "rules": [["[a]", INTEGER], ["[b]", const("!")]], **more}


def matches(given: Any, text: str) -> bool:
    source = structural_tag.rules(given)
    validation.check(RULES, source)
    matcher = COMPILER.compile(RULES, source).matcher()
    return matcher.consume(text.encode()) and matcher.accepting


CASES: list[tuple[Any, list[str], list[str]]] = [
    (const('a"%json::=\x7f😀\n'), ['a"%json::=\x7f😀\n'], ["a", ""]),
    (INTEGER, ["7", "99"], ["", "100", "a"]),
    ({"type": "regex", "pattern": "^a/b|c$"}, ["a/b", "c"], ["a", "a/bc", "a\\/b"]),
    ({"type": "regex", "pattern": "a\\/b\nc|\\\nd|\\\\"}, ["a/b\nc", "\nd", "\\"], ["a\\/b\nc", "nd"]),
    (sequence({"type": "regex", "pattern": "^$"}, const("a")), ["a"], [""]),
    ({"type": "grammar", "grammar": 'root ::= "x" item+\nitem ::= [0-9]'}, ["x1", "x12"], ["x", "1"]),
    ({"type": "grammar", "grammar": 'start: item\nitem: "(" item ")" | "x"'}, ["x", "((x))"], ["(x"]),
    (
        sequence(
            {"type": "grammar", "grammar": 'start: a\na: "x"'}, {"type": "grammar", "grammar": 'start: a\na: "y"'}
        ),
        ["xy"],
        ["xx", "yy", "x"],
    ),
    (ANY_TEXT, ["", "a\nb", "<f=a>é"], []),
    ({"type": "any_text", "excludes": ["no", "never"]}, ["", "nev", "n o"], ["no", "a never b", "nono"]),
    (sequence(const("Answer: "), INTEGER, const(".")), ["Answer: 7."], ["Answer: 7", "7.", "Answer: ."]),
    (sequence({"type": "regex", "pattern": "[a-z]+"}, const("abc")), ["xabc", "abcabc"], ["abc", "abx"]),
    (sequence(ANY_TEXT), ["", "x"], []),
    (either(const("yes"), INTEGER, const("")), ["yes", "3", ""], ["no", "yes3"]),
    ({"type": "optional", "content": INTEGER}, ["", "3"], ["a"]),
    ({"type": "plus", "content": tagged(INTEGER)}, ["<t>1</t>", "<t>1</t><t>2</t>"], ["", "<t>1</t>x"]),
    ({"type": "star", "content": const("ab")}, ["", "abab"], ["aba"]),
    ({"type": "repeat", "min": 1, "max": 2, "content": const("ab")}, ["ab", "abab"], ["", "ababab"]),
    ({"type": "repeat", "min": 2, "max": -1, "content": const("ab")}, ["abab", "ab" * 9], ["", "ab"]),
    (sequence(const("a"), {"type": "repeat", "min": 0, "max": 0, "content": const("b")}), ["a"], ["ab"]),
    (THINK, ["<think></think>", "<think>a </thin b\n</think>"], ["<think>", "<think>a</think>b", "a"]),
    (tagged(ANY_TEXT, ["</t>", "</s>"]), ["<t>a</t>", "<t>a</s>"], ["<t>a</s></t>", "<t>a"]),
    (tagged({"type": "any_text", "excludes": ["no"]}), ["<t>n</t>"], ["<t>no</t>", "<t>a no</t>"]),
    (tagged(INTEGER, ""), ["<t>3"], ["<t>", "<t>3</t>"]),
    (tagged(tagged(ANY_TEXT, ""), "</s>"), ["<t><t>a</s>"], ["<t><t>a</s>b", "<t><t>a"]),
    (tagged(either(ANY_TEXT, INTEGER)), ["<t>7</t>", "<t>a</</t>"], ["<t>a</t></t>"]),
    (tagged({"type": "optional", "content": INTEGER}), ["<t></t>", "<t>3</t>"], ["<t>a</t>"]),
    (tagged(sequence(INTEGER, ANY_TEXT)), ["<t>3</t>", "<t>3 or</ so</t>"], ["<t>a</t>", "<t>3"]),
    (
        triggered(),
        ["", "hello", "a <f a", "x<f=a>3</f>y", '<f=a>3</f><f=b>{"city": "é</f>"}</f> and <', '<f=b>{\n"city":""}</f>'],
        ["<f=", "<f=c>", "<f=a>x</f>", "<f=a>3</f", '<f=b>{"town": ""}</f>', "a <f=a>3</g>"],
    ),
    (triggered(at_least_one=True), ["<f=a>3</f>", "<f=a>3</f> and <f=a>4</f>!"], ["", "a", "a<f=a>3</f>", "<f=a>3"]),
    (triggered(stop_after_first=True), ["", "a", "a<f=a>3</f>"], ["<f=a>3</f>b", "a<f="]),
    (triggered(at_least_one=True, stop_after_first=True), ["<f=a>3</f>"], ["", "<f=a>3</f> ", "a<f=a>3</f>"]),
    (triggered(excludes=["no"]), ["n<f=a>3</f>n"], ["no", "no<f=a>3</f>", "<f=a>3</f>no"]),
    (triggered(triggers=["<f=a>", "<f=b>"]), ["<f=", "<f=c>", "a<f=a>3</f>"], ["<f=a>", "<f=a>x</f>", "<f=b>3</f>"]),
    (tagged(triggered()), ["<t></t>", "<t>a<f=a>3</f>b</t>"], ["<t>a", "<t>a<f=a>3</f></t>b", "<t><f=</t>"]),
    (tagged(triggered(stop_after_first=True)), ["<t>a</t>", "<t>a<f=a>3</f></t>"], ["<t><f=a>3</f>b</t>"]),
    (
        sequence(triggered(excludes=["</r>"]), const("</r>"), INTEGER),
        ["</r>1", "a<f=a>3</f>b</</r>1"],
        ["a", "a</r>", "<f=</r>1"],
    ),
    (sequence({"type": "any_text", "excludes": ["<t>"]}, tagged(INTEGER)), ["a<t>3</t>", "<t>3</t>"], ["a<t>a</t>"]),
    (
        sequence(THINK, triggered()),
        ["<think>\n</think>", "<think><f=</think>a<f=a>3</f>"],
        ["a", "<think></think><f=c"],
    ),
    (
        separated(),
        ["", "<f=a>3</f>", '<f=a>3</f>, <f=b>{"city":""}</f>, <f=a>4</f>'],
        ["a", "<f=a>3</f>,", "<f=a>3</f><f=a>3</f>", "<f=a>3</f>, "],
    ),
    (separated(at_least_one=True), ["<f=a>3</f>", "<f=a>3</f>, <f=a>3</f>"], ["", "x"]),
    (separated(stop_after_first=True), ["", "<f=a>3</f>"], ["<f=a>3</f>, <f=a>3</f>"]),
    (tagged(separated()), ["<t></t>", "<t><f=a>3</f>, <f=a>4</f></t>"], ["<t>a</t>"]),
    (dispatch(), ["", "a[a]3 b[b]! [", "[a]3[a]4"], ["[a]", "[a]b", "[b]?", "a[a]3[b]"]),
    (dispatch(loop=False), ["", "[", "x[a]3"], ["x[a]3 ", "[a]"]),
    (dispatch(excludes=["[c]"]), ["[", "[a]3["], ["[c]", "[a]3[c]"]),
]


@pytest.mark.parametrize(("format", "texts", "others"), CASES, ids=lambda value: json.dumps(value)[:60])
def test_which_texts_match(format: Any, texts: list[str], others: list[str]) -> None:
    given = {"type": "structural_tag", "format": format}
    assert [text for text in texts if not matches(given, text)] == []
    assert [text for text in others if matches(given, text)] == []


def test_the_older_form_means_triggered_tags() -> None:
    structures = [{"begin": each["begin"], "schema": each["content"]["json_schema"], "end": "</f>"} for each in (F, G)]
    older = {"structures": structures, "triggers": ["<f="]}
    assert structural_tag.rules({"type": "structural_tag", **older}) == structural_tag.rules({"format": triggered()})
    assert matches(older, 'I ask. <f=b>{"city": "Rome"}</f> So.')
    assert not matches(older, "<f=b>3</f>")
    assert not matches(older | {"at_least_one": True}, "a")


PATTERNS = [{"type": "regex", "pattern": f"a{i}"} for i in range(129)]
NOT_SUPPORTED = {"type": "json_schema", "json_schema": {"type": "array", "items": {"uniqueItems": True}}}


@pytest.mark.parametrize(
    ("given", "place", "why"),
    [
        ([], "$", "an object"),
        ({}, "$.format", "missing"),
        ({"type": "tag", "format": ANY_TEXT}, "$.type", "structural_tag"),
        ({"format": ANY_TEXT, "strict": True}, "$.strict", "not supported"),
        ({"format": "any_text"}, "$.format", "an object"),
        ({"format": {"type": "token", "token": 3}}, "$.format.type", "'token' is not supported"),
        ({"format": {"type": "qwen_xml_parameter"}}, "$.format.type", "not supported"),
        ({"format": {"type": "any_text", "max_tokens": 5}}, "$.format.max_tokens", "bounds in tokens"),
        ({"format": {"type": "any_text", "excluded": []}}, "$.format.excluded", "not supported"),
        ({"format": {"type": "any_text", "excludes": [""]}}, "$.format.excludes", "none of them empty"),
        ({"format": {**INTEGER, "style": "qwen_xml"}}, "$.format.style", "only|no other style"),
        ({"format": {**INTEGER, "any_order": True}}, "$.format.any_order", "order of the schema"),
        ({"format": sequence()}, "$.format.elements", "1 to 1000"),
        ({"format": sequence(*[const("a")] * 1001)}, "$.format.elements", "1 to 1000"),
        ({"format": {"type": "any_text", "excludes": ["a"] * 129}}, "$.format.excludes", "up to 128"),
        ({"format": dispatch(rules=[[str(i), ANY_TEXT] for i in range(129)])}, "$.format.rules", "1 to 128"),
        ({"format": either(*PATTERNS)}, "$.format.elements[128].pattern", "more than 128"),
        ({"format": sequence(const("a"), 3)}, "$.format.elements[1]", "a format"),
        ({"format": sequence(const("a"), {"type": "regex"})}, "$.format.elements[1].pattern", "missing"),
        ({"format": {"type": "regex", "pattern": "("}}, "$.format.pattern", "unclosed group"),
        ({"format": {"type": "grammar", "grammar": "start: x"}}, "$.format.grammar", "unknown name"),
        ({"format": {"type": "grammar", "grammar": "%llguidance {}\nstart: /a/"}}, "$.format.grammar", "%llguidance"),
        ({"format": tagged(NOT_SUPPORTED)}, "$.format.content.json_schema.items", "uniqueItems"),
        ({"format": tagged(INTEGER, {"type": "token", "token": 3})}, "$.format.end", "tokens are not supported"),
        ({"format": tagged(INTEGER) | {"begin": {"type": "token"}}}, "$.format.begin", "tokens are not supported"),
        ({"format": {"type": "repeat", "min": 2, "max": 1, "content": const("a")}}, "$.format.max", "at least min"),
        ({"format": {"type": "repeat", "min": True, "max": 1, "content": const("a")}}, "$.format.min", "a number"),
        ({"format": sequence(ANY_TEXT, const("a"))}, "$.format.elements[0]", "without an end"),
        ({"format": sequence(triggered(), INTEGER)}, "$.format.elements[0]", "without an end"),
        ({"format": {"type": "star", "content": ANY_TEXT}}, "$.format.content", "without an end"),
        ({"format": separated(tags=[tagged(ANY_TEXT, "")])}, "$.format.tags[0].content", "without an end"),
        ({"format": triggered(tags=[F, const("a")])}, "$.format.tags[1].type", "only tag"),
        ({"format": triggered(triggers=["<g="])}, "$.format.tags[0].begin", "with none of them"),
        ({"format": triggered(triggers=["<f=", "<f"])}, "$.format.tags[0].begin", "with 2 of them"),
        ({"format": triggered(triggers=["<f=", "<g="])}, "$.format.triggers[1]", "no tag begins with it"),
        ({"format": triggered(excludes=["f="])}, "$.format", "is a part of"),
        ({"format": dispatch(rules=[["a", INTEGER], ["a", INTEGER]])}, "$.format.rules", "another text"),
        (
            {"format": dispatch(rules=[["a", INTEGER], ["b", NOT_SUPPORTED]])},
            "$.format.rules[1][1].json_schema",
            "uniq",
        ),
        ({"structures": 3, "triggers": ["a"]}, "$.structures", "a list"),
        ({"structures": [{"begin": "a", "end": "b"}], "triggers": ["a"]}, "$.structures[0].schema", "missing"),
        (
            {"structures": [{"begin": "a", "end": "b", "schema": 3}], "triggers": ["a"]},
            "$.structures[0].schema",
            "an ob",
        ),
        (
            {"structures": [{"begin": "a", "end": "b", "schema": {"items": {"not": {}}}}], "triggers": ["a"]},
            "$.structures[0].schema.items",
            "not",
        ),
        (
            {"structures": [{"begin": "b", "end": "b", "schema": {}}], "triggers": ["a"]},
            "$.structures[0].begin",
            "none",
        ),
        ({"structures": [{"begin": "a", "end": "b", "schema": {}}], "triggers": []}, "$.triggers", "1 to 128 texts"),
        ({"structures": [{"begin": "a", "end": "b", "schema": {}}]}, "$.triggers", "missing"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_obeyed_is_refused_with_the_place_in_it(given: Any, place: str, why: str) -> None:
    with pytest.raises(InvalidGrammar, match=why) as refused:
        structural_tag.rules(given)
    assert str(refused.value).startswith(f"at {place}"), refused.value
    assert str(refused.value)[len(f"at {place}")] in ":.[", refused.value


def test_formats_are_nested_to_a_bound() -> None:
    format = const("a")
    for _ in range(MAX_LEVELS - 1):
        format = sequence(format)
    assert matches({"format": format}, "a")
    with pytest.raises(InvalidGrammar, match="one within the other"):
        structural_tag.rules({"format": sequence(format)})


def test_128_tools_are_a_grammar() -> None:
    """As many as a request may offer."""
    tags = [
        {"begin": f"<f=n{i}>", "content": {"type": "json_schema", "json_schema": CITY}, "end": "</f>"}
        for i in range(128)
    ]
    assert matches({"format": triggered(tags=tags)}, 'a<f=n77>{"city": "x"}</f>')
