"""Grammars are judged once, as long as they are remembered."""

import pytest

from legato_grammar.errors import InvalidGrammar
from legato_grammar.validation import Verdicts
from legato_protocol.sampling.parameters import JSON_SCHEMA, REGEX


class Judge:
    def __init__(self):
        self.asked = []

    def __call__(self, kind, source):
        self.asked.append((kind, source))
        if source.startswith("("):
            raise InvalidGrammar("unclosed group")


def test_a_good_grammar_is_judged_once_and_one_of_another_kind_by_itself():
    judge = Judge()
    found = Verdicts(judge)
    for _ in range(3):
        found.check(REGEX, "a")
        found.check(JSON_SCHEMA, "a")
        found.check(REGEX, "b\ud800")
    assert judge.asked == [(REGEX, "a"), (JSON_SCHEMA, "a"), (REGEX, "b\ud800")]


def test_a_bad_one_is_refused_each_time():
    found = Verdicts(Judge())
    for _ in range(2):
        with pytest.raises(InvalidGrammar, match="unclosed"):
            found.check(REGEX, "(")
