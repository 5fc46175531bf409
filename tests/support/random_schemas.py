"""Random JSON schemas, recursive ones among them, of what a grammar may be asked for."""

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import jsonschema
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

from legato_grammar import validation
from legato_grammar.errors import InvalidGrammar
from legato_protocol.sampling.parameters import JSON_SCHEMA

KEYS = ["a", "b", "name", "é", 'q"', "x y", "日本", ""]
NAMES = st.sampled_from(KEYS)
WORDS = st.text('ab é"\\\n', max_size=4)
"""Values and property names with all that has to be escaped."""


def _numbers() -> st.SearchStrategy[dict[str, Any]]:
    bound = st.integers(-50, 50)
    return st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number"])},
        optional={"minimum": bound, "maximum": bound, "exclusiveMinimum": bound, "multipleOf": st.integers(1, 7)},
    )


def _texts() -> st.SearchStrategy[dict[str, Any]]:
    size = st.integers(0, 6)
    plain = st.fixed_dictionaries({"type": st.just("string")}, optional={"minLength": size, "maxLength": size})
    special = [
        {"pattern": "^[a-c]{2,4}$"},
        {"pattern": r"^\d+-[xyz]?$"},
        {"format": "date"},
        {"format": "ipv4"},
        {"format": "uuid"},
    ]
    return plain | st.sampled_from(special).map(lambda more: {"type": "string", **more})


def _values() -> st.SearchStrategy[dict[str, Any]]:
    value = st.none() | st.booleans() | st.integers(-9, 9) | WORDS | st.lists(st.integers(0, 3), max_size=2)
    listed = st.lists(value, min_size=1, max_size=3).map(lambda values: {"enum": values})
    simple = [{"type": "null"}, {"type": "boolean"}, {"type": ["string", "null"]}, {"$ref": "#/$defs/shared"}]
    return value.map(lambda constant: {"const": constant}) | listed | st.sampled_from(simple)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    def made(properties: Mapping[str, Any], required: int, rest: Any) -> dict[str, Any]:
        names = list(properties)[:required]
        return {"type": "object", "properties": properties, "required": names, "additionalProperties": rest}

    return st.builds(made, st.dictionaries(NAMES, inner, max_size=4), st.integers(0, 4), st.just(False) | inner)


def _lists(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    size = st.integers(0, 3)
    some = {"minItems": size, "maxItems": size, "prefixItems": st.lists(inner, min_size=1, max_size=2)}
    return st.fixed_dictionaries({"type": st.just("array"), "items": inner}, optional=some)


def _composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    some = st.lists(inner, min_size=1, max_size=3)
    return some.map(lambda parts: {"anyOf": parts}) | some.map(lambda parts: {"allOf": parts[:2]})


SCHEMAS = st.recursive(
    _numbers() | _texts() | _values(), lambda inner: _objects(inner) | _lists(inner) | _composed(inner), max_leaves=8
)
SHARED = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/shared"}},
    "required": ["v"],
}


def whole(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "$defs": {"shared": SHARED}}


WHOLE = SCHEMAS.map(whole)


def is_supported(schema: dict[str, Any]) -> bool:
    try:
        validation.check(JSON_SCHEMA, json.dumps(schema))
    except InvalidGrammar:
        return False
    return True


def supported(count: int, seed: int) -> list[dict[str, Any]]:
    """This number of different ones, always the same for a seed; those that are refused are left out."""
    found: dict[str, dict[str, Any]] = {}

    @settings(
        max_examples=20 * count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis_seed(seed)
    @given(WHOLE)
    def gather(schema: dict[str, Any]) -> None:
        if len(found) < count and is_supported(schema):
            found.setdefault(json.dumps(schema), schema)

    gather()
    assert len(found) == count
    return list(found.values())


def arguments(draw: Random, values: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A schema of a function's arguments, of which each has one of these schemas. None has another name."""
    names = draw.sample(KEYS, draw.randint(1, 3))
    properties = {name: draw.choice(values) for name in names}
    made = {"type": "object", "properties": properties, "required": names[: draw.randint(0, 3)]}
    return whole(made) if "$ref" in json.dumps(made) else made


def check(schema: dict[str, Any], answer: str) -> None:
    """Raises where `answer` is no JSON of the schema, formats included."""
    formats = jsonschema.FormatChecker(["date", "ipv4", "uuid"])
    jsonschema.Draft202012Validator(schema, format_checker=formats).validate(json.loads(answer))
