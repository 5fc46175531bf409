"""Whatever the schema and however bad the model: an answer that ends by itself is valid."""

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
import torch
from grammar_vocabulary import COMPILER, END, EOT, TOKENS, step, text
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from legato_engine.grammars.position import GrammarPosition
from legato_grammar import validation
from legato_grammar.errors import InvalidGrammar
from legato_protocol.sampling_params import JSON_SCHEMA, SamplingParams

MOST = 150  # tokens
CLOSING = [id for id, raw in enumerate(TOKENS) if raw and raw[-1:] in b'"}]'] + [END, EOT]
NAMES = st.sampled_from(["a", "b", "name", "é", 'q"', "x y", "日本", ""])
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
    _numbers() | _texts() | _values(),
    lambda inner: _objects(inner) | _lists(inner) | _composed(inner),
    max_leaves=8,
)
SHARED = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/shared"}},
    "required": ["v"],
}


def answer(position: GrammarPosition, seed: int, temperature: float) -> tuple[list[int], bool]:
    """Tokens of a model that knows nothing but tends to close what is open; and whether they ended by themselves."""
    source = torch.Generator().manual_seed(seed)
    params = SamplingParams(max_tokens=MOST, seed=seed, temperature=temperature, stop_token_ids=(END, EOT))
    output: list[int] = []
    while len(output) < MOST:
        logits = torch.randn(1, len(TOKENS), generator=source) * 3
        logits[0, CLOSING] += 4.0
        sampled = step(position, output, logits, params)
        assert not sampled.fault, (sampled.fault, text(output))
        if sampled.token in (END, EOT):
            return output, True
        output.append(sampled.token)
    return output, False


class Finished:
    """How many answers ended by themselves, so that the test cannot pass without any."""

    schemas = answers = refused = 0


@settings(max_examples=230, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(schema=SCHEMAS, seed=st.integers(0, 1 << 30), temperature=st.sampled_from([0.0] * 7 + [1.0]))
def random_answers_are_valid(schema: dict[str, Any], seed: int, temperature: float) -> None:
    whole = {**schema, "$defs": {"shared": SHARED}}
    source = json.dumps(whole)
    try:
        validation.check(JSON_SCHEMA, source)
    except InvalidGrammar:
        Finished.refused += 1
        assume(False)
    grammar = COMPILER.compile(JSON_SCHEMA, source)
    Finished.schemas += 1
    output, ended = answer(GrammarPosition(grammar), seed, temperature)
    if ended:
        Finished.answers += 1
        value = json.loads(text(output).decode())
        validator = jsonschema.Draft202012Validator(
            whole, format_checker=jsonschema.FormatChecker(["date", "ipv4", "uuid"])
        )
        validator.validate(value)


def test_every_answer_that_ends_is_valid() -> None:
    random_answers_are_valid()
    assert Finished.schemas >= 200
    assert Finished.answers >= 0.8 * Finished.schemas, vars(Finished)


@pytest.mark.parametrize("kind", ["replayed", "followed"])
def test_a_position_follows_from_the_output_alone(kind: str) -> None:
    """One that has seen nothing before says the same as one that has followed every token."""
    grammar = COMPILER.compile(JSON_SCHEMA, json.dumps({"$defs": {"shared": SHARED}, "$ref": "#/$defs/shared"}))
    followed = GrammarPosition(grammar)
    output, _ = answer(GrammarPosition(grammar), 5, 1.0)
    for known in range(len(output)):
        other = followed if kind == "followed" else followed.at_start()
        assert other.allowed(output[:known], (END,), False) == GrammarPosition(grammar).allowed(
            output[:known], (END,), False
        )
    assert followed.allowed(output[:1], (END,), False) == GrammarPosition(grammar).allowed(output[:1], (END,), False)
