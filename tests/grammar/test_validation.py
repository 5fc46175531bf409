"""Grammars that are refused, with the place in them; and that judging any of them takes bounded time and memory."""

import json

import pytest

from legato_grammar import lark, validation
from legato_grammar.errors import InvalidGrammar
from legato_grammar.guidance import MAX_RULES, Compiler
from legato_grammar.schema import MAX_LEVELS
from legato_grammar.vocabulary import SINGLE_BYTES
from legato_protocol.sampling.parameters import CHOICE, GRAMMAR_KINDS, JSON_SCHEMA, REGEX, RULES

COMPILER = Compiler(SINGLE_BYTES)
TREE = {
    "$defs": {"node": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}},
    "$ref": "#/$defs/node",
}


INTEGERS = {"type": "integer"}
WITHOUT_EFFECT = [
    {"propertyNames": {"type": "string"}, "type": "object", "additionalProperties": INTEGERS},
    {"propertyNames": True, "unevaluatedProperties": {}, "type": "object"},
    *({"type": "string", "format": name} for name in ("password", "poem", "int32")),
    {"type": "array", "items": {"type": "object", "properties": {"format": {"type": "string", "format": "color"}}}},
    {"uniqueItems": False, "unevaluatedItems": True, "type": "array"},
    {"not": False},
    {"if": {"type": "string"}},
    {"then": False, "else": False},
    {"type": "array", "contains": {"type": "null"}, "minContains": 0},
    {"type": "array", "maxContains": 1},
    {"dependentSchemas": {}, "dependentRequired": {}, "dependencies": {}},
    {"type": "string", "required": [{}], "properties": {}, "minProperties": 1},
]


@pytest.mark.parametrize("schema", WITHOUT_EFFECT, ids=json.dumps)
def test_keywords_that_constrain_nothing_are_accepted(schema):
    """Clients write them: zod's records have `propertyNames`. In JSON Schema 2020-12, other formats are annotations."""
    validation.check(JSON_SCHEMA, json.dumps(schema))
    validation.check(RULES, f"start: {lark.schema({'type': 'array', 'items': schema})}")


HALF = {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (HALF, ["0.25", "0.5", "0.0000001"], ["0", "0.0", "-0", "0.6"]),
        ({"type": "array", "items": HALF}, ["[0.5]"], ["[0]"]),
        ({"type": ["number", "null"], "exclusiveMinimum": 1, "exclusiveMaximum": 1.5}, ["1.25", "null"], ["1", "1.5"]),
        ({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}, ["-0.5", "-0.1"], ["0", "-0", "-0.0"]),
        ({"minimum": 0.2, "exclusiveMinimum": 0, "maximum": 1}, ["0.2", "1"], ["0.1", "0"]),
        ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 2}, ["1"], ["0", "2"]),
        (
            {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-10},
            ["0.00000000005"],
            ["0", "0.0000000001"],
        ),
        ({"$defs": {"x": {"$anchor": "foo", "type": "integer"}}, "$ref": "#foo"}, ["3"], ['"a"']),
        ({"minProperties": 1, "additionalProperties": INTEGERS, "type": "object"}, ['{"a":1}'], ["{}"]),
        (
            {"properties": {"a": INTEGERS}, "required": ["a"], "minProperties": 2, "type": "object"},
            ['{"a":1,"b":2}'],
            ['{"a":1}', '{"a":1,"a":2}'],
        ),
    ],
    ids=str,
)
def test_bounds_anchors_and_counts_are_obeyed(schema, good, bad):
    source = json.dumps(schema)
    validation.check(JSON_SCHEMA, source)
    assert [text for text in (*good, *bad) if matches(JSON_SCHEMA, source, text)] == good


def nested(levels):
    schema = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def chain(links):
    definitions = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(links)}
    return {"$defs": {**definitions, str(links): {"type": "integer"}}, "$ref": "#/$defs/0"}


PATTERNS = [{"type": "string", "pattern": f"a{{{i}}}"} for i in range(25)]


def nested_patterns(levels):
    schema = {"type": "string"}
    for level in range(levels):
        schema = {"type": "string", "pattern": f"b{level}", "anyOf": [schema]}
    return schema


def matches(kind, source, text):
    matcher = COMPILER.compile(kind, source).matcher()
    return matcher.consume(text.encode()) and matcher.accepting


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "object", "properties": {"a": {"type": "array", "items": {"uniqueItems": True}}}}, "$.properties.a"),
        ({"type": "object", "properties": {"a": {"type": "text"}, "b": {}}}, "$.properties.a"),
        ({"type": "array", "items": {"type": "string", "pattern": "("}}, "$.items"),
        ({"type": "array", "items": {"type": "string", "format": "uri-template"}}, "$.items"),
        ({"items": {"type": "object", "minProperties": 2}}, "$.items"),
        ({"properties": {"a": {}}, "required": ["a", "b"], "minProperties": 3, "additionalProperties": {}}, "$:"),
        (
            {"$defs": {"x": {"properties": {"y": {"not": {}}}}}, "items": {"$ref": "#/$defs/x"}},
            "$.$defs.x.properties.y",
        ),
        ({"anyOf": [{"type": "null"}, {"contains": {}}]}, "$.anyOf[1]"),
        ({"type": "object", "x-guidance": {"lenient": True}, "properties": {"a": {"not": {}}}}, "$.properties.a"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "$:"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "$:"),
        ({"$ref": "#/nowhere"}, "$:"),
        ({"$ref": "https://example.com/schema.json"}, "$:"),
        (False, "$:"),
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_obeyed_is_refused_with_the_place_in_it(schema, place):
    with pytest.raises(InvalidGrammar) as refused:
        validation.check(JSON_SCHEMA, json.dumps(schema))
    assert str(refused.value).startswith(f"at {place}"), refused.value


A = {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "required": ["b"]}
B = {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}]}


PATTERN = {"type": "object", "required": ["x"], "patternProperties": {"^x$": {}}, "additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}, "$ref": "#/$defs/a"},
        {"$defs": {"a": A, "b": B}, "$ref": "#/$defs/a"},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False, "minProperties": 1},
    ],
)
def test_a_schema_that_no_finite_value_matches_is_refused(schema):
    with pytest.raises(InvalidGrammar, match="no finite value matches it"):
        validation.check(JSON_SCHEMA, json.dumps(schema))


@pytest.mark.parametrize(
    "schema",
    [
        TREE,
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]},
        {"type": "array", "items": {"$ref": "#"}},
        chain(100),
        {"$defs": {"a/c": {"type": "null"}}, "$ref": "#/$defs/a~1c"},
        {"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": PATTERN}},
        True,
        {},
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_recursion_that_ends_is_allowed(schema):
    validation.check(JSON_SCHEMA, json.dumps(schema))


@pytest.mark.parametrize(
    ("kind", "source", "why"),
    [
        (JSON_SCHEMA, json.dumps(nested(MAX_LEVELS)), "levels"),
        (JSON_SCHEMA, json.dumps(chain(5000)), "levels"),
        (JSON_SCHEMA, "[" * 100_000, "JSON"),
        (JSON_SCHEMA, json.dumps({"properties": {str(i): {} for i in range(2001)}}), "2001 properties"),
        (JSON_SCHEMA, json.dumps({"allOf": PATTERNS}), "combines 25 patterns"),
        (JSON_SCHEMA, json.dumps(nested_patterns(25)), "combines 25 patterns"),
        (JSON_SCHEMA, "{", "JSON"),
        (JSON_SCHEMA, "3", "object or boolean"),
        (REGEX, "(", "unclosed group"),
        (REGEX, "a(?=b)", "look-around"),
        (REGEX, r"(a)\1", "backreferences"),
        (REGEX, "[a&&b]", "no text matches it"),
        (RULES, "start: other", "unknown name"),
        (RULES, 'start: ("a"', "Expected"),
        (RULES, 'root ::= "a" )', "Expected"),
        (RULES, 'root ::= nothing\nother ::= "a"', "'nothing' not found"),
        (RULES, "start: <|im_end|>", "cannot be compiled"),
        (RULES, '%llguidance {"no_forcing": false}\nstart: "a"', "%llguidance"),
        (RULES, "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(MAX_RULES)) + "\nr500: /a/", "rules"),
        (RULES, f"start: %json {json.dumps(chain(5000))}", "levels"),
        (RULES, 'start: "a" inner\ninner: %json\n ' + json.dumps(chain(5000)), "levels"),
        (RULES, f"start: %json // {{}}\n {json.dumps(chain(5000))}", "followed by a JSON schema"),
        (RULES, f"start: %json {json.dumps({'allOf': PATTERNS})}", "combines 25 patterns"),
        (RULES, "start: " + "(" * 5000 + '"a"' + ")" * 5000, "deeply nested"),
        (CHOICE, "{", "Expecting"),
        ("haiku", "x", "'haiku' are not supported"),
    ],
    ids=lambda value: value[:30],
)
def test_what_cannot_be_compiled_is_refused_in_words(kind, source, why):
    with pytest.raises(InvalidGrammar, match=why):
        validation.check(kind, source)


def test_patterns_that_no_text_has_to_match_together_may_be_many():
    properties = {str(i): {"anyOf": [{"type": "string", "pattern": f"^a{i}$"}, {"type": "null"}]} for i in range(100)}
    validation.check(JSON_SCHEMA, json.dumps({"type": "object", "properties": properties}))


def test_the_deepest_schema_that_is_allowed_fits_the_stack():
    """By objects, which take most of it, and by references, which the compiler follows."""
    levels = (MAX_LEVELS - 40) // 40
    definitions = {}
    for i in range(20):
        part = {"$ref": f"#/$defs/{i + 1}"}
        for _ in range(levels // 2):
            part = {"type": "object", "properties": {"a": part}, "required": ["a"], "additionalProperties": False}
        definitions[str(i)] = part
    schema = {"$defs": {**definitions, "20": {"type": "integer"}}, "$ref": "#/$defs/0"}
    validation.check(JSON_SCHEMA, json.dumps(schema))


@pytest.mark.parametrize(
    ("kind", "source", "text", "other"),
    [
        (REGEX, "^[0-9]{3}$", "123", "1234"),
        (REGEX, r"a\$", "a$", "a"),
        (REGEX, 'a/b"c', 'a/b"c', "a/b"),
        (CHOICE, json.dumps(["red", 'say "é"\n']), 'say "é"\n', "blue"),
        (RULES, 'start: "a" b+\nb: "x" | "y"', "axy", "a"),
        (RULES, 'root ::= "a" [0-9]+', "a12", "a"),
        (JSON_SCHEMA, '{"type": "object"}', '{"a": [1, {"b": null}]}', "[]"),
        (JSON_SCHEMA, '{"const": "日本"}', '"日本"', '"日"'),
        (JSON_SCHEMA, '{"properties": {"b": {}, "a": {}}}', '{\n  "b": 1,\n  "a": 2\n}', '{"b": 1,'),
    ],
)
def test_a_text_matches_as_a_whole(kind, source, text, other):
    assert kind in GRAMMAR_KINDS
    assert matches(kind, source, text)
    assert not matches(kind, source, other)


def test_space_is_bounded():
    """A model that likes nothing better must go on at some point."""
    assert matches(JSON_SCHEMA, '{"type": "object"}', "{" + " " * 32 + "}")
    assert not matches(JSON_SCHEMA, '{"type": "object"}', "{" + " " * 33 + "}")
