"""Structural tags that cannot be obeyed: each is refused with the place in it."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from structural_formats import ANY_TEXT, INTEGER, F, const, dispatch, either, separated, sequence, tagged, triggered

from legato_grammar import structural_tag
from legato_grammar.errors import InvalidGrammar
from legato_grammar.structural_format import MAX_LEVELS, MAX_REPEATS, MAX_TEXTS


def repeated(least: Any, most: Any) -> dict[str, Any]:
    return {"type": "repeat", "min": least, "max": most, "content": const("a")}


@pytest.mark.parametrize("place", ["", ".structures[0]", ".format"])
def test_of_many_fields_that_are_not_known_the_client_s_first_is_named(place: str) -> None:
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
    ("given", "place", "why"),
    [
        ([], "$", "an object"),
        ({}, "$.format", "missing"),
        ({"format": None}, "$.format", "missing"),
        ({"type": "tag", "format": ANY_TEXT}, "$.type", "structural_tag"),
        ({"format": ANY_TEXT, "strict": True}, "$.strict", "not supported"),
        ({"format": "any_text"}, "$.format", "an object"),
        ({"format": {"type": "token", "token": 3}}, "$.format.type", "'token' is not supported"),
        ({"format": {"type": []}}, "$.format.type", "not supported"),
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
        ({"format": repeated(0, MAX_REPEATS + 1)}, "$.format.max", "from 0 to 1000, or -1"),
        ({"format": repeated(MAX_REPEATS + 1, -1)}, "$.format.min", "from 0 to 1000"),
        ({"format": repeated(-1, 1)}, "$.format.min", "from 0 to 1000"),
        ({"format": repeated(0, -2)}, "$.format.max", "or -1"),
        ({"format": tagged(INTEGER, [])}, "$.format.end", "a list of texts"),
        ({"format": triggered(at_least_one="yes")}, "$.format.at_least_one", "true or false"),
        ({"format": dispatch(loop=1)}, "$.format.loop", "true or false"),
        ({"format": dispatch(rules=[["", INTEGER]])}, "$.format.rules", "text, format"),
        ({"format": dispatch(rules=[[3, INTEGER]])}, "$.format.rules", "text, format"),
        ({"format": dispatch(rules=[["a", ANY_TEXT]])}, "$.format.rules[0][1]", "without an end"),
        ({"format": triggered(tags=[F, ENDLESS])}, "$.format.tags[1].content", "without an end"),
        ({"format": triggered(tags=[F, ENDLESS], at_least_one=True)}, "$.format.tags[1].content", "without an end"),
        (
            {"format": triggered(tags=[ENDLESS], at_least_one=True, stop_after_first=True)},
            "$.format.tags[0].content",
            "without an end",
        ),
        ({"format": sequence(ANY_TEXT, const("a"))}, "$.format.elements[0]", "without an end"),
        ({"format": sequence(triggered(), INTEGER)}, "$.format.elements[0]", "without an end"),
        ({"format": {"type": "star", "content": ANY_TEXT}}, "$.format.content", "without an end"),
        ({"format": separated(tags=[tagged(ANY_TEXT, "")])}, "$.format.tags[0].content", "without an end"),
        ({"format": triggered(tags=[F, const("a")])}, "$.format.tags[1].type", "only tag"),
        ({"format": triggered(triggers=["<g="])}, "$.format.tags[0].begin", "with none of them"),
        ({"format": triggered(triggers=["<f=", "<f"])}, "$.format.tags[0].begin", "with 2 of them"),
        ({"format": triggered(triggers=["<f=", "<g="])}, "$.format.triggers[1]", "no tag begins with it"),
        ({"format": triggered(excludes=["f="])}, "$.format", "'f=' is a part of '<f='"),
        ({"format": triggered(excludes=["<f"])}, "$.format", "is a part of"),
        ({"format": triggered(excludes=["<f=x"])}, "$.format", "'<f=' is a part of '<f=x'"),
        ({"format": dispatch(excludes=["a"])}, "$.format", "'a' is a part of"),
        ({"format": tagged(triggered(), "=")}, "$.format.content", "'=' is a part of '<f='"),
        ({"format": dispatch(rules=[["a", INTEGER], ["a", INTEGER]])}, "$.format.rules", "another text"),
        (
            {"format": dispatch(rules=[["a", INTEGER], ["b", NOT_SUPPORTED]])},
            "$.format.rules[1][1].json_schema",
            "uniq",
        ),
        ({"structures": 3, "triggers": ["a"]}, "$.structures", "a list"),
        ({"structures": [3], "triggers": ["a"]}, "$.structures[0]", "an object"),
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


NESTING: list[Callable[[Any], Any]] = [
    sequence,
    lambda inner: {"type": "optional", "content": inner},
    lambda inner: dispatch(rules=[["[a]", inner]]),
]


@pytest.mark.parametrize("nested", NESTING, ids=["elements", "content", "rules"])
def test_formats_are_nested_to_a_bound(nested: Callable[[Any], Any]) -> None:
    format = const("a")
    for _ in range(MAX_LEVELS - 2):
        format = sequence(format)
    assert structural_tag.rules({"format": nested(format)}).startswith("start: ")
    with pytest.raises(InvalidGrammar, match="one within the other"):
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
def test_what_is_allowed_includes_its_bounds(format: Any) -> None:
    assert structural_tag.rules({"format": format}).startswith("start: ")
