"""Options of a request for the JSON of an answer."""

import json

import pytest

from legato_grammar import json_options
from legato_grammar.errors import InvalidGrammar
from legato_grammar.guidance import Compiler
from legato_grammar.vocabulary import SINGLE_BYTES
from legato_protocol.sampling.parameters import JSON_SCHEMA, RULES

COMPILER = Compiler(SINGLE_BYTES)
PAIR = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array"}}, "required": ["a"]}


def matches(kind, source, text):
    matcher = COMPILER.compile(kind, source).matcher()
    return matcher.consume(text.encode()) and matcher.accepting


def test_objects_that_name_properties_have_no_others():
    schema = {
        "properties": {"additionalProperties": PAIR, "open": {**PAIR, "additionalProperties": True}},
        "$defs": {"x": {"patternProperties": {"^y": PAIR}}},
        "items": {"anyOf": [PAIR, {"type": "object"}]},
        "const": {"properties": {}},
    }
    pair = {**PAIR, "additionalProperties": False}
    assert json_options.closed(schema) == {
        "properties": {"additionalProperties": pair, "open": {**PAIR, "additionalProperties": True}},
        "$defs": {"x": {"patternProperties": {"^y": pair}, "additionalProperties": False}},
        "items": {"anyOf": [pair, {"type": "object"}]},
        "const": {"properties": {}},
        "additionalProperties": False,
    }
    assert matches(JSON_SCHEMA, json.dumps(PAIR), '{"a": 1, "c": 2}')
    assert not matches(JSON_SCHEMA, json.dumps(json_options.closed(PAIR)), '{"a": 1, "c": 2}')


def test_what_is_no_schema_stays_as_it_is():
    assert json_options.closed({"properties": 3, "$defs": [PAIR]}) == {"properties": 3, "$defs": [PAIR]}


@pytest.mark.parametrize("schema", [PAIR, True, {}], ids=str)
def test_space_is_what_the_options_say(schema):
    tight, wide = '{"a":1,"b":[1,2]}', '{"a": 1, "b": [1, 2]}'
    assert matches(RULES, json_options.compact(schema), tight)
    assert not matches(RULES, json_options.compact(schema), wide)
    optional = json_options.spaced_by(schema, "^ ?$")
    assert matches(RULES, optional, tight)
    assert matches(RULES, optional, wide)
    assert not matches(RULES, optional, wide.replace(" ", "  "))
    assert matches(RULES, json_options.spaced_by(schema, "[ \n]*"), wide.replace(" ", " \n "))


@pytest.mark.parametrize("pattern", ["x?", "[ x]", ".*", "\\s", "\f", "("])
def test_space_is_nothing_else(pattern):
    with pytest.raises(InvalidGrammar):
        json_options.spaced_by(PAIR, pattern)


def test_a_schema_that_cannot_be_obeyed_is_refused_with_the_place_in_it():
    with pytest.raises(InvalidGrammar, match=r"at \$.items: .*uniqueItems"):
        json_options.compact({"items": {"type": "array", "uniqueItems": True}})
