"""Structural tags that cannot be obeyed: each is refused with the place in it."""

import re

import pytest
from structural_formats import ANY_TEXT, INTEGER, F, const, dispatch, either, separated, sequence, tagged, triggered

from legato_grammar import structural_tag
from legato_grammar.errors import InvalidGrammar
from legato_grammar.structural_format import MAX_LEVELS, MAX_REPEATS, MAX_TEXTS


def repeated(least, most):
    return {"type": "repeat", "min": least, "max": most, "content": const("a")}


@pytest.mark.parametrize("place", ["", ".structures[0]", ".format"])
def test_of_many_fields_that_are_not_known_the_client_s_first_is_named(place):
    others = {f"x{i}": 0 for i in range(40)}
    whole = {"begin": "<f=", "schema": {}, "end": ";"}
    given = {
        "": {"structures": [whole], "triggers": ["<f="], **others},
        ".structures[0]": {"structures": [{**whole, **others}], "triggers": ["<f="]},
        ".format": {"format": {**ANY_TEXT, **others}},
    }[place]
    with pytest.raises(InvalidGrammar, match=re.escape(f"at ${place}.x0: not supported")):
        structural_tag.rules(given)


ENDLESS = {"begin": "<f=c>", "content": ANY_TEXT, "end": ""}
PATTERNS = [{"type": "regex", "pattern": f"a{i}"} for i in range(129)]
NOT_SUPPORTED = {"type": "json_schema", "json_schema": {"type": "array", "items": {"uniqueItems": True}}}


@pytest.mark.parametrize(
    ("format", "place", "why"),
    [
        ({"type": "token", "token": 3}, ".type", "'token' is not supported"),
        ({"type": []}, ".type", "not supported"),
        ({"type": "any_text", "max_tokens": 5}, ".max_tokens", "bounds in tokens"),
        ({"type": "any_text", "excluded": []}, ".excluded", "not supported"),
        ({"type": "any_text", "excludes": [""]}, ".excludes", "none of them empty"),
        ({**INTEGER, "style": "qwen_xml"}, ".style", "only|no other style"),
        ({**INTEGER, "any_order": True}, ".any_order", "order of the schema"),
        (sequence(), ".elements", "1 to 1000"),
        (sequence(*[const("a")] * 1001), ".elements", "1 to 1000"),
        ({"type": "any_text", "excludes": ["a"] * 129}, ".excludes", "up to 128"),
        (dispatch(rules=[[str(i), ANY_TEXT] for i in range(129)]), ".rules", "1 to 128"),
        (either(*PATTERNS), ".elements[128].pattern", "more than 128"),
        (sequence(const("a"), 3), ".elements[1]", "a format"),
        (sequence(const("a"), {"type": "regex"}), ".elements[1].pattern", "missing"),
        ({"type": "regex", "pattern": "("}, ".pattern", "unclosed group"),
        ({"type": "grammar", "grammar": "start: x"}, ".grammar", "unknown name"),
        ({"type": "grammar", "grammar": "%llguidance {}\nstart: /a/"}, ".grammar", "%llguidance"),
        (tagged(NOT_SUPPORTED), ".content.json_schema.items", "uniqueItems"),
        (tagged(INTEGER, {"type": "token", "token": 3}), ".end", "tokens are not supported"),
        (tagged(INTEGER) | {"begin": {"type": "token"}}, ".begin", "tokens are not supported"),
        ({"type": "repeat", "min": 2, "max": 1, "content": const("a")}, ".max", "at least min"),
        ({"type": "repeat", "min": True, "max": 1, "content": const("a")}, ".min", "a number"),
        (repeated(0, MAX_REPEATS + 1), ".max", "from 0 to 1000, or -1"),
        (repeated(MAX_REPEATS + 1, -1), ".min", "from 0 to 1000"),
        (repeated(-1, 1), ".min", "from 0 to 1000"),
        (repeated(0, -2), ".max", "or -1"),
        (tagged(INTEGER, []), ".end", "a list of texts"),
        (triggered(at_least_one="yes"), ".at_least_one", "true or false"),
        (dispatch(loop=1), ".loop", "true or false"),
        (dispatch(rules=[["", INTEGER]]), ".rules", "text, format"),
        (dispatch(rules=[[3, INTEGER]]), ".rules", "text, format"),
        (dispatch(rules=[["a", ANY_TEXT]]), ".rules[0][1]", "without an end"),
        (triggered(tags=[F, ENDLESS]), ".tags[1].content", "without an end"),
        (triggered(tags=[F, ENDLESS], at_least_one=True), ".tags[1].content", "without an end"),
        (triggered(tags=[ENDLESS], at_least_one=True, stop_after_first=True), ".tags[0].content", "without an end"),
        (sequence(ANY_TEXT, const("a")), ".elements[0]", "without an end"),
        (sequence(triggered(), INTEGER), ".elements[0]", "without an end"),
        ({"type": "star", "content": ANY_TEXT}, ".content", "without an end"),
        (separated(tags=[tagged(ANY_TEXT, "")]), ".tags[0].content", "without an end"),
        (triggered(tags=[F, const("a")]), ".tags[1].type", "only tag"),
        (triggered(triggers=["<g="]), ".tags[0].begin", "with none of them"),
        (triggered(triggers=["<f=", "<f"]), ".tags[0].begin", "with 2 of them"),
        (triggered(triggers=["<f=", "<g="]), ".triggers[1]", "no tag begins with it"),
        (triggered(excludes=["f="]), "", "'f=' is a part of '<f='"),
        (triggered(excludes=["<f=x"]), "", "'<f=' is a part of '<f=x'"),
        (dispatch(excludes=["a"]), "", "'a' is a part of"),
        (tagged(triggered(), "="), ".content", "'=' is a part of '<f='"),
        (dispatch(rules=[["a", INTEGER], ["a", INTEGER]]), ".rules", "distinct texts"),
        (dispatch(rules=[["a", INTEGER], ["b", NOT_SUPPORTED]]), ".rules[1][1].json_schema", "uniq"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_format_that_cannot_be_obeyed_is_refused_with_the_place_in_it(format, place, why):
    refused({"format": format}, f"$.format{place}", why)


def older(structures, triggers=("a",)):
    return {"structures": structures, "triggers": list(triggers)}


@pytest.mark.parametrize(
    ("given", "place", "why"),
    [
        ([], "$", "an object"),
        ({}, "$.format", "missing"),
        ({"format": None}, "$.format", "missing"),
        ({"type": "tag", "format": ANY_TEXT}, "$.type", "structural_tag"),
        ({"format": ANY_TEXT, "strict": True}, "$.strict", "not supported"),
        ({"format": "any_text"}, "$.format", "an object"),
        (older(3), "$.structures", "a list"),
        (older([3]), "$.structures[0]", "an object"),
        (older([{"begin": "a", "end": "b"}]), "$.structures[0].schema", "missing"),
        (older([{"begin": "a", "end": "b", "schema": 3}]), "$.structures[0].schema", "an ob"),
        (older([{"begin": "a", "end": "b", "schema": {"items": {"not": {}}}}]), "$.structures[0].schema.items", "not"),
        (older([{"begin": "b", "end": "b", "schema": {}}]), "$.structures[0].begin", "none"),
        (older([{"begin": "a", "end": "b", "schema": {}}], triggers=[]), "$.triggers", "1 to 128 texts"),
        ({"structures": [{"begin": "a", "end": "b", "schema": {}}]}, "$.triggers", "missing"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_tag_that_cannot_be_obeyed_is_refused_with_the_place_in_it(given, place, why):
    refused(given, place, why)


def refused(given, place, why):
    with pytest.raises(InvalidGrammar, match=why) as caught:
        structural_tag.rules(given)
    text = str(caught.value)
    assert text.startswith(f"at {place}"), text
    assert text[len(f"at {place}")] in ":.[", text


NESTING = [
    sequence,
    lambda inner: {"type": "optional", "content": inner},
    lambda inner: dispatch(rules=[["[a]", inner]]),
]


@pytest.mark.parametrize("nested", NESTING, ids=["elements", "content", "rules"])
def test_formats_are_nested_to_a_bound(nested):
    format = const("a")
    for _ in range(MAX_LEVELS - 2):
        format = sequence(format)
    assert structural_tag.rules({"format": nested(format)}).startswith("start: ")
    with pytest.raises(InvalidGrammar, match="nested formats"):
        structural_tag.rules({"format": nested(sequence(format))})


@pytest.mark.parametrize(
    "format",
    [
        repeated(0, MAX_REPEATS),
        repeated(MAX_REPEATS, MAX_REPEATS),
        sequence(*[const("a")] * 1000),
        {"type": "any_text", "excludes": [f"a{i}" for i in range(MAX_TEXTS)]},
        {"type": "json_schema", "json_schema": True},
    ],
    ids=lambda format: str(format)[:60],
)
def test_what_is_allowed_includes_its_bounds(format):
    assert structural_tag.rules({"format": format}).startswith("start: ")
