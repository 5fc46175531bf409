"""Allowed next tokens, by a grammar, by the tokens that end an answer, and by its least length."""

import numpy as np
import pytest
from grammar_vocabulary import COMPILER, END, EOT, TOKENS

from legato_engine.grammars.position import GrammarPosition
from legato_engine.sampling import constrain
from legato_engine.scheduler.batch import DeadEnd, Draw
from legato_protocol.sampling.parameters import REGEX, SamplingParams

A, B, C = b"abc"


def ids(mask):
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def allowed(regex, output, stops=(END, EOT), early=False):
    return ids(GrammarPosition(COMPILER.compile(REGEX, regex)).allowed(output, stops, early))


@pytest.mark.parametrize(
    ("regex", "output", "stops", "early", "expected"),
    [
        ("ab?", [], (END, EOT), False, {A}),
        ("ab?", [A], (END, EOT), False, {B, END, EOT}),
        ("ab?", [A, B], (END, EOT), False, {END, EOT}),
        # a token that is a stop is not a part of an answer
        ("a(b|c)", [A], (END, B), False, {C}),
        ("ab?", [A], (END, B), False, {END, B}),
        # while it is too short it ends only where nothing else may follow
        ("ab?", [A], (END, EOT), True, {B}),
        ("ab?", [A], (END, B), True, {END, B}),
        ("ab?", [A, B], (END, EOT), True, {END, EOT}),
    ],
)
def test_an_answer_ends_where_it_is_complete_with_any_of_its_stops(regex, output, stops, early, expected):
    assert allowed(regex, output, stops, early) == expected


def test_stops_that_the_grammar_needs_are_a_dead_end_and_the_end_of_the_library_is_not_a_token():
    with pytest.raises(DeadEnd, match="its stop tokens"):
        allowed("ab", [A], (END, B))
    assert max(allowed("a*", [A])) < len(TOKENS)


def test_what_does_not_match_goes_on_with_nothing():
    position = GrammarPosition(COMPILER.compile(REGEX, "ab?"))
    for output in ([B], [A, C]):
        with pytest.raises(DeadEnd, match="does not match its grammar"):
            position.at_start().allowed(output, (END,), False)


@pytest.mark.parametrize(("known", "expected"), [(1, {A}), (2, {A, END}), (3, {A, END})])
def test_an_output_is_too_short_up_to_its_least_tokens(known, expected):
    position = GrammarPosition(COMPILER.compile(REGEX, "a*"))
    params = SamplingParams(max_tokens=9, seed=1, min_tokens=2, stop_token_ids=(END,))
    tokens = [C, C, *[A] * known]
    draw = Draw(0, len(tokens), params, tokens, 2, position)
    (mask,) = constrain.masks(constrain.due([draw], [4])).values()
    assert isinstance(mask, bytes)
    assert ids(mask) & {A, B, END} == expected
