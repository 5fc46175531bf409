"""Which tokens may follow, by a grammar, by the tokens that end an answer, and by how short it may be."""

from collections.abc import Sequence

import numpy as np
import pytest
from grammar_vocabulary import COMPILER, END, EOT, TOKENS

from legato_engine.grammars.position import GrammarPosition
from legato_engine.sampling import constrain
from legato_engine.scheduler.batch import DeadEnd, Draw
from legato_protocol.sampling_params import REGEX, SamplingParams

A, B, C = b"abc"


def ids(mask: bytes) -> set[int]:
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def allowed(regex: str, output: Sequence[int], stops: Sequence[int] = (END, EOT), early: bool = False) -> set[int]:
    return ids(GrammarPosition(COMPILER.compile(REGEX, regex)).allowed(output, stops, early))


def test_an_answer_ends_where_it_is_complete_with_any_of_its_stops() -> None:
    assert allowed("ab?", []) == {A}
    assert allowed("ab?", [A]) == {B, END, EOT}
    assert allowed("ab?", [A, B]) == {END, EOT}
    assert max(allowed("a*", [A])) < len(TOKENS), "the end that the library knows is no token"


def test_a_token_that_is_a_stop_is_no_part_of_an_answer() -> None:
    assert allowed("a(b|c)", [A], (END, B)) == {C}
    assert allowed("ab?", [A], (END, B)) == {END, B}, "as a stop"
    with pytest.raises(DeadEnd, match="its stop tokens"):
        allowed("ab", [A], (END, B))


def test_as_long_as_it_is_too_short_it_ends_only_where_nothing_else_may_follow() -> None:
    assert allowed("ab?", [A], early=True) == {B}
    assert allowed("ab?", [A], (END, B), early=True) == {END, B}
    assert allowed("ab?", [A, B], early=True) == {END, EOT}


def test_what_does_not_match_goes_on_with_nothing() -> None:
    position = GrammarPosition(COMPILER.compile(REGEX, "ab?"))
    for output in ([B], [A, C]):
        with pytest.raises(DeadEnd, match="do not match its grammar"):
            position.at_start().allowed(output, (END,), False)


def test_a_position_follows_a_text_that_grew_by_several_tokens_and_one_that_is_another() -> None:
    position = GrammarPosition(COMPILER.compile(REGEX, "abc(a|b)c?"))
    assert ids(position.allowed([A], (END,), False)) == {B}
    assert ids(position.allowed([A, B, C], (END,), False)) == {A, B}
    assert ids(position.allowed([A, B, C, A], (END,), False)) == {C, END}
    assert ids(position.allowed([A, B], (END,), False)) == {C}


@pytest.mark.parametrize(("known", "expected"), [(1, {A}), (2, {A, END}), (3, {A, END})])
def test_an_output_is_too_short_up_to_its_least_tokens(known: int, expected: set[int]) -> None:
    """Those of the prompt are none of it."""
    position = GrammarPosition(COMPILER.compile(REGEX, "a*"))
    params = SamplingParams(max_tokens=9, seed=1, min_tokens=2, stop_token_ids=(END,))
    tokens = [C, C, *[A] * known]
    draw = Draw(0, len(tokens), params, tokens, 2, position)
    (mask,) = constrain.masks(constrain.due([draw], [4])).values()
    assert isinstance(mask, bytes)
    assert ids(mask) & {A, B, END} == expected
