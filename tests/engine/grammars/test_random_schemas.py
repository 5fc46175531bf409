"""Whatever the schema and however bad the model: an answer that ends by itself is valid."""

import json

import pytest
import random_schemas
import torch
from budget import times
from grammar_vocabulary import COMPILER, END, EOT, TOKENS, step, text
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from legato_engine.grammars.position import GrammarPosition
from legato_protocol.sampling.parameters import JSON_SCHEMA, SamplingParams

MOST = 150  # tokens
CLOSING = [id for id, raw in enumerate(TOKENS) if raw and raw[-1:] in b'"}]'] + [END, EOT]


def answer(position, seed, temperature):
    """Tokens of a model that knows nothing but tends to close what is open; and whether they ended by themselves."""
    source = torch.Generator().manual_seed(seed)
    params = SamplingParams(max_tokens=MOST, seed=seed, temperature=temperature, stop_token_ids=(END, EOT))
    output = []
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
    """Counts answers that ended by themselves, so that the test cannot pass without any."""

    schemas = answers = refused = 0


@settings(
    max_examples=times(70), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)
@given(schema=random_schemas.WHOLE, seed=st.integers(0, 1 << 30), temperature=st.sampled_from([0.0] * 7 + [1.0]))
def random_answers_are_valid(schema, seed, temperature):
    if not random_schemas.is_supported(schema):
        Finished.refused += 1
        assume(False)
    grammar = COMPILER.compile(JSON_SCHEMA, json.dumps(schema))
    Finished.schemas += 1
    output, ended = answer(GrammarPosition(grammar), seed, temperature)
    if ended:
        Finished.answers += 1
        random_schemas.check(schema, text(output).decode())


def test_every_answer_that_ends_is_valid():
    random_answers_are_valid()
    assert Finished.schemas >= times(60)
    assert Finished.answers >= 0.8 * Finished.schemas, vars(Finished)


@pytest.mark.parametrize("kind", ["replayed", "followed"])
def test_a_position_follows_from_the_output_alone(kind):
    """One that has seen nothing before says the same as one that has followed every token."""
    grammar = COMPILER.compile(JSON_SCHEMA, json.dumps(random_schemas.whole({"$ref": "#/$defs/shared"})))
    followed = GrammarPosition(grammar)
    output, _ = answer(GrammarPosition(grammar), 5, 1.0)
    for known in range(len(output)):
        other = followed if kind == "followed" else followed.at_start()
        assert other.allowed(output[:known], (END,), False) == GrammarPosition(grammar).allowed(
            output[:known], (END,), False
        )
    assert followed.allowed(output[:1], (END,), False) == GrammarPosition(grammar).allowed(output[:1], (END,), False)
