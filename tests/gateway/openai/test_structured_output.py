"""Fields that say what an answer has to match: what the relay is asked for, and what is refused before it is."""

import json
from typing import Any

from pydantic import BaseModel

from legato_grammar import json_options, structural_tag
from legato_protocol.sampling.parameters import CHOICE, JSON_SCHEMA, REGEX, RULES

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}, "required": ["b"]}
NAMES = {"properties": {"name": {"type": "string"}}}
REFERS = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}
NOT_SUPPORTED = {"type": "array", "items": {"type": "array", "uniqueItems": True}}


class Person(BaseModel):
    name: str
    friends: "list[Person]"


def named(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


def tagged(schema: Any) -> dict[str, Any]:
    tag = {"begin": "<f=a>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</f>"}
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f="], "tags": [tag]}}


CLOSED = {**SCHEMA, "additionalProperties": False}
OLDER = {"structures": [{"begin": "<f=a>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f="]}
TAGGED = structural_tag.rules(OLDER)


async def asked(gateway: Any, **fields: Any) -> Any:
    """The sampling parameters that the relay is given, the same of chats and completions."""
    found = []
    for answer in (await gateway.chat(**fields), await gateway.complete(**fields)):
        assert answer.status_code == 200, answer.text
        found.append(gateway.relay.requests[-1].params)
    assert (found[0].grammar, found[0].grammar_kind) == (found[1].grammar, found[1].grammar_kind)
    return found[0]


SPELLINGS: list[tuple[dict[str, Any], str, Any]] = [
    ({"response_format": {"type": "json_object"}}, JSON_SCHEMA, {"type": "object"}),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, JSON_SCHEMA, SCHEMA),
    ({"response_format": {"type": "json_object", "schema": {}}}, JSON_SCHEMA, {"type": "object"}),
    ({"response_format": {"type": "json_object", "schema": True}}, JSON_SCHEMA, {"type": "object"}),
    ({"response_format": {"type": "json_object", "schema": NAMES}}, JSON_SCHEMA, {"type": "object", **NAMES}),
    ({"response_format": {"type": "json_object", "schema": REFERS}}, JSON_SCHEMA, REFERS),
    ({"response_format": {"type": "json_object", "schema": {"const": "42"}}}, JSON_SCHEMA, {"const": "42"}),
    ({"response_format": {"type": "json_object", "schema": {"enum": [1, {}]}}}, JSON_SCHEMA, {"enum": [1, {}]}),
    ({"response_format": {"type": "json_object", "schema": None, "strict": None}}, JSON_SCHEMA, {"type": "object"}),
    ({"response_format": named(SCHEMA, description="a person")}, JSON_SCHEMA, SCHEMA),
    ({"response_format": named(SCHEMA, strict=True)}, JSON_SCHEMA, SCHEMA),
    ({"response_format": named(SCHEMA, strict=False)}, JSON_SCHEMA, SCHEMA),
    ({"response_format": named(Person.model_json_schema())}, JSON_SCHEMA, Person.model_json_schema()),
    ({"structured_outputs": {"json": SCHEMA}}, JSON_SCHEMA, SCHEMA),
    ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, JSON_SCHEMA, SCHEMA),
    ({"structured_outputs": {"json_object": True}}, JSON_SCHEMA, {"type": "object"}),
    ({"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}}, JSON_SCHEMA, CLOSED),
    ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": False}}, JSON_SCHEMA, SCHEMA),
    ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, RULES, json_options.compact(SCHEMA)),
    ({"structured_outputs": {"json": CLOSED, "whitespace_pattern": " ?"}}, RULES, json_options.spaced_by(CLOSED, " ?")),
    ({"structured_outputs": {"regex": "[a-c]+"}}, REGEX, "[a-c]+"),
    ({"structured_outputs": {"choice": ["é", "no", "é"]}}, CHOICE, ["é", "no"]),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, RULES, 'start: "a"'),
    ({"structured_outputs": {"structural_tag": json.dumps(OLDER)}}, RULES, TAGGED),
    ({"structured_outputs": {"structural_tag": tagged(SCHEMA)}}, RULES, TAGGED),
    ({"response_format": tagged(SCHEMA)}, RULES, TAGGED),
    ({"response_format": {"type": "structural_tag", **OLDER}}, RULES, TAGGED),
    ({"guided_json": SCHEMA}, JSON_SCHEMA, SCHEMA),
    ({"guided_json": json.dumps(SCHEMA)}, JSON_SCHEMA, SCHEMA),
    ({"guided_regex": "[a-c]+"}, REGEX, "[a-c]+"),
    ({"guided_choice": ["a", "b"], "guided_json": None}, CHOICE, ["a", "b"]),
    ({"guided_grammar": 'root ::= "a"'}, RULES, 'root ::= "a"'),
    ({"response_format": {"type": "text"}, "guided_regex": "a"}, REGEX, "a"),
    ({"response_format": {"type": "text"}, "structured_outputs": None, "guided_json": None}, JSON_SCHEMA, ""),
]


async def test_every_spelling_reaches_the_worker(gateway):
    for fields, kind, source in SPELLINGS:
        params = await asked(gateway, **fields)
        found = params.grammar if isinstance(source, str) else json.loads(params.grammar)
        assert (params.grammar_kind, found) == (kind, source)
        if isinstance(source, dict):
            assert list(found.get("properties", ())) == list(source.get("properties", ())), "in the schema's own order"


async def test_an_answer_that_nothing_can_follow_ends_in_spite_of_ignore_eos(gateway):
    params = await asked(gateway, guided_regex="a+", ignore_eos=True, max_tokens=9)
    assert (params.stop_token_ids, params.min_tokens) == ((256,), 9)
    plain = await asked(gateway, ignore_eos=True, max_tokens=9)
    assert (plain.stop_token_ids, plain.min_tokens) == ((), 0)


COMPACT = "disable_any_whitespace"
WRONG: list[tuple[str, Any, str, str]] = [  # a field, its value, where in it the error is, and what it says
    ("response_format", 3, ".type", "json_object"),
    ("response_format", {"type": "poem"}, ".type", "'poem'"),
    ("response_format", {"type": ["text"]}, ".type", "['text']"),
    ("response_format", {"type": "json_schema"}, ".json_schema", "missing"),
    ("response_format", {"type": "json_object", "schema": 123}, ".schema", "JSON schema"),
    ("response_format", {"type": "json_object", "schema": {"type": "hiccup"}}, ".schema", "hicc"),
    ("response_format", {"type": "json_object", "schema": NOT_SUPPORTED}, ".schema", "at $.items"),
    ("response_format", {"type": "json_object", "strict": True}, ".strict", "not supported"),
    ("response_format", {"type": "text", "schema": SCHEMA}, ".schema", "not supported"),
    ("response_format", named(SCHEMA, pattern="a"), ".json_schema.pattern", "not supported"),
    ("response_format", named(None), ".json_schema.schema", "missing"),
    ("response_format", named([]), ".json_schema.schema", "JSON schema"),
    ("response_format", named(SCHEMA, strict=3), ".json_schema.strict", "true or false"),
    ("response_format", named(NOT_SUPPORTED), ".json_schema.schema", "at $.items"),
    ("response_format", named(NOT_SUPPORTED, strict=False), ".json_schema.schema", "uniqueItems"),
    ("structured_outputs", {"json": NOT_SUPPORTED}, ".json", "at $.items"),
    ("structured_outputs", [], "", "an object"),
    ("structured_outputs", {"regex": "("}, ".regex", "unclosed"),
    ("structured_outputs", {"regex": "a", "choice": ["b"]}, ".choice", "contradict"),
    ("structured_outputs", {"structural_tag": "{"}, ".structural_tag", "not JSON"),
    ("structured_outputs", {"structural_tag": "{}"}, ".structural_tag", "at $.format: missing"),
    ("response_format", tagged(NOT_SUPPORTED), "", "at $.format.tags[0].content.json_schema.items"),
    ("response_format", {"type": "structural_tag", "format": {"type": "token"}}, "", "'token'"),
    ("response_format", {"type": "structural_tag", "a": "a" * 300_000}, "", "at most 262144"),
    ("structured_outputs", {"regex": "a", COMPACT: True}, f".{COMPACT}", "with json and json_object only"),
    ("structured_outputs", {"json": {}, "disable_any_whitespace": "yes"}, ".disable_any_whitespace", "true or false"),
    ("structured_outputs", {"json": {}, COMPACT: True, "whitespace_pattern": " "}, ".whitespace_pattern", "contradict"),
    ("structured_outputs", {"json": {}, "whitespace_pattern": " |x"}, ".whitespace_pattern", "more than space"),
    ("structured_outputs", {"json": {}, "whitespace_pattern": "("}, ".whitespace_pattern", "unclosed"),
    ("structured_outputs", {"json": NOT_SUPPORTED, COMPACT: True}, ".json", "at $.items"),
    ("structured_outputs", {"anything": 3}, ".anything", "not supported"),
    ("guided_json", "{", "", "not JSON"),
    ("guided_json", {"$ref": "#/x"}, "", "does not exist"),
    ("guided_json", {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "", "fin"),
    ("guided_regex", "", "", "at least one"),
    ("guided_regex", "a" * 300_000, "", "at most 262144"),
    ("guided_choice", [], "", "1 to 1000"),
    ("guided_choice", ["a"] * 1001, "", "1 to 1000"),
    ("guided_choice", ["a", 3], "", "texts"),
    ("guided_grammar", "start: x", "", "unknown name"),
]
TOGETHER = [
    ({"guided_json": {}, "guided_regex": "a+"}, "guided_regex"),
    ({"guided_json": {}, "response_format": {"type": "json_object"}}, "guided_json"),
]


async def test_what_cannot_be_obeyed_is_refused_before_it_is_dispatched(gateway):
    wrong = [({field: value}, field + place, text) for field, value, place, text in WRONG]
    for fields, param, text in (*wrong, *((*each, "contradict") for each in TOGETHER)):
        for answer in (await gateway.chat(**fields), await gateway.complete(**fields)):
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, param), error
            assert text in error["message"]
    assert not gateway.relay.requests
