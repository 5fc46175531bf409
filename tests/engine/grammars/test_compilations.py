"""Compiled grammars are kept by what they are, the latest that were asked for, and each is compiled once."""

import json
import selectors

import pytest
from grammar_vocabulary import COMPILER

from legato_engine.grammars.compilations import MOST_KEPT, Compilations
from legato_protocol.sampling.parameters import CHOICE, REGEX, SamplingParams


class Counting:
    """A compiler that tells what it compiles."""

    words = COMPILER.words

    def __init__(self):
        self.compiled = []

    def compile(self, kind, source):
        self.compiled.append(source)
        return COMPILER.compile(kind, source)


@pytest.fixture
def counting():
    counting = Counting()
    made = Compilations(lambda: counting)  # type: ignore[arg-type,return-value]
    yield made, counting
    made._thread.shutdown()


def params(source, kind=REGEX):
    return SamplingParams(max_tokens=1, seed=0, grammar=source, grammar_kind=kind, stop_token_ids=(1,))


def ready(made):
    with selectors.DefaultSelector() as selector:
        selector.register(made, selectors.EVENT_READ)
        return bool(selector.select(60))


def wait(made, asked):
    while (found := made.ask(asked)) is None:
        assert ready(made), "it is never ready"
        made.take_done()
    return found


def test_one_grammar_is_compiled_once_however_often_it_is_asked_for(counting):
    made, compiler = counting
    assert [made.ask(params("a")) for _ in range(3)] == [None] * 3
    assert wait(made, params("a")) is wait(made, params("a"))
    made._thread.shutdown()  # all that was begun is done
    assert compiler.compiled == ["a"]


def test_the_same_text_may_be_of_two_kinds(counting):
    made, _ = counting
    text = json.dumps(["a"])
    regex, choice = wait(made, params(text)), wait(made, params(text, CHOICE))
    assert regex is not choice
    assert choice.matcher().consume(b"a")
    assert not regex.matcher().consume(b"a]"), "a set of characters"


def test_those_that_were_not_asked_for_in_a_while_are_forgotten(counting):
    made, compiler = counting
    first, second = "a", "b"
    wait(made, params(first))
    wait(made, params(second))
    for number in range(MOST_KEPT - 2):
        wait(made, params(f"c{number}"))
    wait(made, params(first))
    wait(made, params("another"))
    compiler.compiled.clear()
    wait(made, params(first))
    wait(made, params(second))
    assert compiler.compiled == [second]
