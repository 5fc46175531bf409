"""Reasoning in what models write, whatever pieces it comes in, and what is none."""

import re

import pytest
from budget import times
from hypothesis import example, given, settings
from hypothesis import strategies as st

from legato_gateway.parsers.reasoning.families import FAMILIES
from legato_gateway.parsers.reasoning.parser import ReasoningParser

EXAMPLES = [  # family, whether the prompt ends within it, what the model writes, its reasoning, its content
    ("Think", True, "Okay, 9.8 > 9.11.\n</think>\n\n9.8 is greater.", "Okay, 9.8 > 9.11.", "9.8 is greater."),
    ("Think", False, "<think>\nOkay.\n</think>\n\nHello!\n", "Okay.", "Hello!\n"),
    ("Think", True, "<think>\nOkay.\n</think>\n\nHello!", "Okay.", "Hello!"),
    ("Think", False, "\n<think>Okay.</think>Hello!", "Okay.", "Hello!"),
    ("Mistral", False, "[THINK]Two and two.[/THINK]4", "Two and two.", "4"),
    ("Think", False, "<think>\n\n</think>\n\nParis.", "", "Paris."),
    ("Think", True, "It goes on and on\n", "It goes on and on", ""),
    ("Think", True, "It goes on </thin", "It goes on </thin", ""),
    ("Think", False, " Paris. <think> is a tag </think> ", "", " Paris. <think> is a tag </think> "),
    ("Think", False, "<thin", "", "<thin"),
    ("Think", False, " \n", "", " \n"),
    ("Think", True, " \n", "", ""),
    ("Think", True, "a < b </ think></think>< c", "a < b </ think>", "< c"),
    ("Think", True, "a</think>b</think>c", "a", "b</think>c"),
    ("Think", True, "[THINK]a[/THINK]b", "[THINK]a[/THINK]b", ""),
    ("Think", False, "", "", ""),
]


def read(family, begun, text, cuts=()):
    parser = ReasoningParser(FAMILIES[family], begun)
    at, found, passed = 0, [], 0
    for cut in [*sorted(cuts), len(text)]:
        found.append(parser.push(text[at:cut]))
        at = max(at, cut)
        if parser.content_at is None:
            passed = parser.passed
    found.append(parser.finish())
    content = "".join(pair[1] for pair in found)
    assert parser.content_at == (len(text) - len(content) if content else None)
    assert parser.content_at is None or passed <= parser.content_at
    kinds = [kind for pair in found for kind in (0, 1) if pair[kind]]
    assert kinds == sorted(kinds), "no reasoning behind content"
    return "".join(pair[0] for pair in found), content


def at_once(family, begun, text):
    """The same by one regular expression over all of the text."""
    mark = FAMILIES[family]
    opened = re.match(rf"\s*{re.escape(mark.open)}", text)
    if not begun and not opened:
        return "", text
    reasoning, closed, content = text[opened.end() if opened else 0 :].partition(mark.close)
    return reasoning.strip(), content.lstrip() if closed else ""


@pytest.mark.parametrize(("family", "begun", "text", "reasoning", "content"), EXAMPLES)
def test_examples_are_read(family, begun, text, reasoning, content):
    assert read(family, begun, text) == (reasoning, content)
    assert read(family, begun, text, range(len(text))) == (reasoning, content)


pieces = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<thi", "nk>", "</", "[THINK]", "[/THINK]", " ", "\n", "a", "<", "é", "b c"]
    )
)


@settings(max_examples=times(50), deadline=None)
@given(st.sampled_from(sorted(FAMILIES)), st.booleans(), pieces.map("".join), st.lists(st.integers(0, 60)))
@example("Think", True, "a \n</think", [2, 3])
def test_random_pieces_are_read_as_at_once(family, begun, text, cuts):
    assert read(family, begun, text, [min(cut, len(text)) for cut in cuts]) == at_once(family, begun, text)
