"""Reasoning that has to end in time, and a grammar behind it: masks follow from the output alone."""

import json
from contextlib import suppress

import jsonschema
import msgspec
import pytest
import torch
from budget import times
from grammar_vocabulary import COMPILER, END, EOT, TOKENS, step, text
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_engine.grammars import compilations
from legato_engine.grammars.reasoning import ReasoningPosition, ReasoningRules
from legato_engine.scheduler.batch import DeadEnd
from legato_grammar.errors import InvalidGrammar
from legato_protocol.sampling.parameters import JSON_SCHEMA, REASONING, REGEX, SamplingParams
from legato_protocol.sampling.reasoning import ReasoningBounds, ReasoningTokens

OPEN, CLOSE, SPACE = ord("~"), ord("^"), ord(" ")  # tokens that nothing below is written with
SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 3, "maxItems": 3}
CLOSING = [TOKENS.index(b"]"), TOKENS.index(b",")]
MOST = 60
DRAFTED = [*(TOKENS.index(each) for each in (b"[", b"1", b",", b"]")), CLOSE, OPEN, SPACE, END]


def rules(begun, budget, schema=None, regex=""):
    marks = ReasoningTokens(OPEN, CLOSE, begun, (SPACE,))
    grammar = json.dumps(schema) if schema is not None else regex
    source = msgspec.json.encode(ReasoningBounds(marks, budget, grammar, REGEX if regex else JSON_SCHEMA)).decode()
    found = compilations.compile_grammar(COMPILER, REASONING, source)
    assert isinstance(found, ReasoningRules)
    return found


def answer(given_rules, seed, temperature, begins, replays):
    """Samples a model that knows nothing, likes to end immediately, and `begins` to reason if it may."""
    source, drafts = (torch.Generator().manual_seed(seed) for _ in range(2))
    params = SamplingParams(max_tokens=MOST, seed=seed, temperature=temperature, stop_token_ids=(END, EOT))
    position, output = ReasoningPosition(given_rules), list[int]()
    while len(output) < MOST and (not output or output[-1] not in (END, EOT)):
        logits = torch.randn(1, len(TOKENS), generator=source)
        logits[0, [END, *CLOSING]] += 4
        logits[0, OPEN] += 50 if begins and not output else 0
        if replays[len(output) % len(replays)]:
            position = position.at_start()
        else:
            verify(position, output, [DRAFTED[at] for at in torch.randint(len(DRAFTED), (4,), generator=drafts)])
        sampled = step(position, output, logits, params)
        assert not sampled.fault, sampled.fault
        output.append(sampled.token)
    return output


def verify(position, output, drafts):
    """Masks after drafts, as a step that verifies them needs: the next output may be without them."""
    accepted = position.accepted(output, drafts)
    for count in range(accepted + 1):
        with suppress(DeadEnd):
            mask = position.allowed([*output, *drafts[:count]], (END, EOT), False)
            allowed = not mask or count == accepted or mask[drafts[count] >> 3] >> (drafts[count] & 7) & 1
            assert allowed or drafts[count] in (END, EOT) or mask == position._only(CLOSE)


def parted(output, begun):
    """Reasoning, and what is behind it; None where that has not begun."""
    if not begun:
        if output[:1] != [OPEN]:
            return [], output
        output = output[1:]
    if CLOSE not in output:
        return output, None
    at = output.index(CLOSE)
    return output[:at], output[at + 1 :]


@settings(deadline=None, max_examples=times(20))
@given(
    begun=st.booleans(),
    begins=st.booleans(),
    budget=st.none() | st.integers(0, 12),
    constrained=st.booleans(),
    seed=st.integers(0, 1 << 20),
    temperature=st.sampled_from([0.0, 1.0]),
    replays=st.lists(st.booleans(), min_size=1, max_size=5),
)
def test_whatever_a_model_wants_to_say(begun, begins, budget, constrained, seed, temperature, replays):
    made = rules(begun, budget, SCHEMA if constrained else None)
    output = answer(made, seed, temperature, begins, replays)
    assert output == answer(made, seed, temperature, begins, [True]), "it follows from the tokens alone"
    reasoning, rest = parted(output, begun)
    if budget is not None:
        assert len([token for token in reasoning if token != OPEN]) <= budget
    if not constrained:
        return
    assert not {END, EOT} & set(reasoning), "an answer ends where it is complete"
    if rest and rest[-1] in (END, EOT):
        jsonschema.validate(json.loads(text(rest)), SCHEMA)
    if budget is not None:
        assert rest, "there was room for the answer"
        assert rest[-1] in (END, EOT)


def mask(made, output, early=False):
    """Returns the tokens that may follow; None: all of them."""
    found = ReasoningPosition(made).allowed(output, (END, EOT), early)
    if not found:
        return None
    return {token for token in range(len(TOKENS)) if found[token >> 3] >> (token & 7) & 1}


EVERYTHING = set(range(len(TOKENS)))


def test_the_budget_ends_reasoning_with_its_mark():
    made = rules(begun=True, budget=2)
    assert mask(made, [7]) is None
    assert mask(made, [7, 8]) == {CLOSE}
    assert mask(made, [7, 8, CLOSE]) is None
    assert mask(made, [7, CLOSE, 8, 9, 10, 11]) is None
    assert mask(rules(begun=True, budget=0), []) == {CLOSE}


def test_reasoning_that_the_model_opens_itself_is_bounded_from_there():
    made = rules(begun=False, budget=1)
    assert mask(made, []) is None
    assert mask(made, [SPACE, OPEN, 7]) == {CLOSE}
    assert mask(made, [7, OPEN, 7, 7]) is None, "an answer that talks of the mark"


def test_nothing_ends_too_early():
    made = rules(begun=True, budget=3)
    for output in ([7], [7, CLOSE, 8]):
        assert mask(made, output, early=True) == EVERYTHING - {END, EOT}
    assert mask(made, [7, 7, 7], early=True) == {CLOSE}


def test_a_grammar_begins_behind_reasoning():
    made = rules(begun=True, budget=None, schema=SCHEMA)
    assert mask(made, []) == mask(made, [7, OPEN]) == EVERYTHING - {END, EOT}
    behind = mask(made, [7, CLOSE])
    assert behind == mask(made, [CLOSE])
    assert behind is not None
    assert behind < EVERYTHING
    assert CLOSE not in behind


def test_a_model_may_reason_or_answer_where_its_prompt_leaves_that_open():
    made = rules(begun=False, budget=None, schema=SCHEMA)
    first, inside = mask(made, []), mask(made, [OPEN])
    assert first is not None
    assert OPEN in first
    assert ord("[") in first
    assert inside == EVERYTHING - {END, EOT}
    assert mask(made, [OPEN, 7, CLOSE]) == first - {OPEN}
    assert OPEN not in (mask(made, [ord("[")]) or {OPEN})


def test_a_position_goes_back_where_its_output_is_shorter():
    made = rules(begun=True, budget=2, schema=SCHEMA)
    position = ReasoningPosition(made)
    for output in ([7, CLOSE, ord("["), ord("1")], [7], [7, 8], []):
        again = position.allowed(output, (END, EOT), False)
        assert again == ReasoningPosition(made).allowed(output, (END, EOT), False)


@pytest.mark.parametrize(
    "source",
    [
        "{",
        "[]",
        '{"tokens": {"open": 1, "close": 100000, "open_in_prompt": true}}',
        '{"tokens": {"open": -1, "close": 1, "open_in_prompt": true}}',
        '{"tokens": {"open": 1, "close": 2, "open_in_prompt": true}, "grammar": "x", "grammar_kind": "haiku"}',
        '{"tokens": {"open": 1, "close": 2, "open_in_prompt": true}, "grammar": "x", "grammar_kind": "reasoning"}',
    ],
)
def test_bounds_that_mean_nothing_are_refused(source):
    with pytest.raises(InvalidGrammar):
        compilations.compile_grammar(COMPILER, REASONING, source)
