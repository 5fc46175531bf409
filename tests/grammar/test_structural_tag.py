"""Structural tags: which texts match them."""

import json

import pytest
from structural_formats import (
    ANY_TEXT,
    CITY,
    INTEGER,
    THINK,
    F,
    G,
    const,
    dispatch,
    either,
    separated,
    sequence,
    tagged,
    triggered,
)

from legato_grammar import structural_tag, validation
from legato_grammar.guidance import MAX_RULES, Compiler
from legato_grammar.vocabulary import SINGLE_BYTES
from legato_protocol.sampling.parameters import RULES

COMPILER = Compiler(SINGLE_BYTES)


def matches(given, text):
    source = structural_tag.rules(given)
    validation.check(RULES, source)
    matcher = COMPILER.compile(RULES, source).matcher()
    return matcher.consume(text.encode()) and matcher.accepting


CASES = [
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
    (sequence(const("a"), either(ANY_TEXT, INTEGER)), ["a", "ax", "a7"], ["x"]),
    (sequence(const("a"), {"type": "optional", "content": ANY_TEXT}), ["a", "ab c"], ["b"]),
    (tagged(ANY_TEXT, ""), ["<t>", "<t>a</t>"], ["a"]),
    (sequence({"type": "regex", "pattern": "[a-z]+"}, either(const("abc"), const("z"))), ["xabc", "yz"], ["abc", "x"]),
    (either(const("yes"), INTEGER, const("")), ["yes", "3", ""], ["no", "yes3"]),
    ({"type": "optional", "content": INTEGER}, ["", "3"], ["a"]),
    ({"type": "plus", "content": tagged(INTEGER)}, ["<t>1</t>", "<t>1</t><t>2</t>"], ["", "<t>1</t>x"]),
    ({"type": "star", "content": const("ab")}, ["", "abab"], ["aba"]),
    ({"type": "repeat", "min": 1, "max": 2, "content": const("ab")}, ["ab", "abab"], ["", "ababab"]),
    ({"type": "repeat", "min": 2, "max": -1, "content": const("ab")}, ["abab", "ab" * 9], ["", "ab"]),
    ({"type": "repeat", "min": 0, "max": 1, "content": const("ab")}, ["", "ab"], ["abab"]),
    ({"type": "repeat", "min": 2, "max": 2, "content": const("ab")}, ["abab"], ["ab", "ababab"]),
    (sequence(const("a"), {"type": "repeat", "min": 0, "max": 0, "content": const("b")}), ["a"], ["ab"]),
    (THINK, ["<think></think>", "<think>a </thin b\n</think>"], ["<think>", "<think>a</think>b", "a"]),
    (tagged(ANY_TEXT, ["</t>", "</s>"]), ["<t>a</t>", "<t>a</s>"], ["<t>a</s></t>", "<t>a"]),
    (tagged({"type": "any_text", "excludes": ["no"]}), ["<t>n</t>"], ["<t>no</t>", "<t>a no</t>"]),
    (tagged(INTEGER, ""), ["<t>3"], ["<t>", "<t>3</t>"]),
    (tagged(tagged(INTEGER, "</s>")), ["<t><t>3</s></t>"], ["<t><t>3</s>", "<t><t>3</t>"]),
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
    (
        tagged(triggered()),
        ["<t></t>", "<t>a<f=a>3</f>b</t>"],
        ["<t>a", "<t>a</t>b</t>", "<t>a<f=a>3</f></t>b", "<t><f=</t>"],
    ),
    (tagged(triggered(at_least_one=True, stop_after_first=True)), ["<t><f=a>3</f></t>"], ["<t></t>", "<t><f=a>3</f>"]),
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
def test_which_texts_match(format, texts, others):
    given = {"type": "structural_tag", "format": format}
    assert [text for text in texts if not matches(given, text)] == []
    assert [text for text in others if matches(given, text)] == []


def test_the_older_form_means_triggered_tags():
    structures = [{"begin": each["begin"], "schema": each["content"]["json_schema"], "end": "</f>"} for each in (F, G)]
    older = {"structures": structures, "triggers": ["<f="]}
    assert structural_tag.rules({"type": "structural_tag", **older}) == structural_tag.rules({"format": triggered()})
    assert matches(older, 'I ask. <f=b>{"city": "Rome"}</f> So.')
    assert not matches(older, "<f=b>3</f>")
    assert not matches(older | {"at_least_one": True}, "a")


def test_128_tools_are_a_grammar():
    tags = [
        {"begin": f"<f=n{i}>", "content": {"type": "json_schema", "json_schema": CITY}, "end": "</f>"}
        for i in range(128)
    ]
    assert matches({"format": triggered(tags=tags)}, 'a<f=n77>{"city": "x"}</f>')


def test_what_is_repeated_is_spelled_once():
    same = tagged({"type": "grammar", "grammar": 'start: "x"'})
    assert matches({"format": sequence(*[same] * (MAX_RULES // 2))}, "<t>x</t>" * (MAX_RULES // 2))
