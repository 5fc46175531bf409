"""Reasoning in what models write, whatever pieces it comes in, and which models do reason."""

import re
from typing import get_args

import pytest
from budget import times
from hypothesis import example, given, settings
from hypothesis import strategies as st

from legato_gateway.parsers.reasoning import parser, support
from legato_gateway.parsers.reasoning.parser import FAMILIES, ReasoningParser
from legato_gateway.tokenizer.chat_template import ChatTemplate
from legato_protocol.settings.parsers import ReasoningSetting

EXAMPLES = [  # whether the prompt ends within reasoning, what the model writes, its reasoning, its content
    (True, "Okay, 9.8 > 9.11.\n</think>\n\n9.8 is greater.", "Okay, 9.8 > 9.11.", "9.8 is greater."),
    (False, "<think>\nOkay.\n</think>\n\nHello!\n", "Okay.", "Hello!\n"),
    (True, "<think>\nOkay.\n</think>\n\nHello!", "Okay.", "Hello!"),
    (False, "\n<think>Okay.</think>Hello!", "Okay.", "Hello!"),
    (False, "<think>\n\n</think>\n\nParis.", "", "Paris."),
    (True, "It goes on </thin", "It goes on </thin", ""),
    (False, " Paris. <think> is a tag </think> ", "", " Paris. <think> is a tag </think> "),
    (True, " \n", "", ""),
    (True, "a < b </ think></think>< c", "a < b </ think>", "< c"),
    (True, "a</think>b</think>c", "a", "b</think>c"),
    (True, "[THINK]a[/THINK]b", "[THINK]a[/THINK]b", ""),
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
    assert (parser.content_at is not None) == bool(content)
    assert text[parser.content_at :].startswith(content)
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
    content = content.lstrip() if closed else ""
    if mark.answer and (inside := re.fullmatch("{}\\s*(.*?)(\\s*{}\\s*)?".format(*mark.answer), content, re.DOTALL)):
        content = inside[1]
    return reasoning.strip(), content


@pytest.mark.parametrize(("begun", "text", "reasoning", "content"), EXAMPLES)
def test_examples_are_read(begun, text, reasoning, content):
    assert read("Think", begun, text) == (reasoning, content)
    assert read("Think", begun, text, range(len(text))) == (reasoning, content)
    assert at_once("Think", begun, text) == (reasoning, content)


def test_other_models_have_other_marks():
    assert read("Mistral", False, "[THINK]Two and two.[/THINK]4") == ("Two and two.", "4")
    for content in ("4 </response>\n", "4"):
        assert read("Granite", False, f"<think>Two and two.</think>\n<response> {content}") == ("Two and two.", "4")
    assert read("Granite", False, "<response>4</response>") == ("", "<response>4</response>")


PIECES = [
    "<think>",
    "</think>",
    "<thi",
    "nk>",
    "</",
    "<response>",
    "</response>",
    "</resp",
    "[THINK]",
    "[/THINK]",
    " ",
    "\n",
    "a",
    "<",
    "é",
    "b c",
]
TEXT = st.lists(st.sampled_from(PIECES)).map("".join)


@settings(max_examples=times(50), deadline=None)
@given(st.sampled_from(sorted(FAMILIES)), st.booleans(), TEXT, st.lists(st.integers(0, 60)))
@example("Think", True, "a \n</think", [2, 3])
def test_random_pieces_are_read_as_at_once(family, begun, text, cuts):
    assert read(family, begun, text, [min(cut, len(text)) for cut in cuts]) == at_once(family, begun, text)


SAID = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
TEMPLATES = {
    "Qwen3": SAID
    + "{% if add_generation_prompt %}<assistant>\n{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}",
    "DeepSeek-R1-Distill": SAID.replace("message.content", "message.content.split('</think>')[-1]")
    + "{% if add_generation_prompt %}{{ '<assistant><think>\\n' }}{% endif %}",
    "DeepSeek-V3.1": SAID + "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
    "{% if thinking %}{{ '<think>' }}{% else %}{{ '</think>' }}{% endif %}",
    "Magistral": "Think between [THINK] and [/THINK]." + SAID,
    "SmolLM2": SAID + "<assistant>",
    "Granite": "Thoughts in <think></think>, then a response in <response></response>." + SAID,
}
HI = [{"role": "user", "content": "What does <think> mean?"}]


class Tokens:
    """Bytes, and tokens of their own for these texts."""

    def __init__(self, *words):
        self.words = [*(bytes([byte]) for byte in range(256)), *(word.encode() for word in words)]

    def encode(self, text, add_special, most):
        return [self.words.index(text.encode())] if text.encode() in self.words else list(text.encode())

    def token_bytes(self, id):
        return self.words[id]


def begins(name, **variables):
    """True if the prompt already opens the answer's reasoning; None if it has no reasoning."""
    tokens = Tokens()
    prompt = ChatTemplate(TEMPLATES[name], {}).render(HI, variables).encode()
    format = support.for_model("Auto", TEMPLATES[name], tokens).format_for(prompt, tokens, True)
    return format.open_in_prompt if format else None


FAMILIES_OF = dict.fromkeys(("Qwen3", "DeepSeek-R1-Distill", "DeepSeek-V3.1"), "Think")
FAMILIES_OF |= {"Magistral": "Mistral", "SmolLM2": None, "none": None, "Granite": "Granite"}


@pytest.mark.parametrize(("name", "family"), FAMILIES_OF.items())
def test_the_family_is_found_in_the_template(name, family):
    template = TEMPLATES.get(name)
    assert parser.from_template(template) == family
    settings = {"Auto": family, "Off": None, "Mistral": "Mistral"}
    assert {each: support.for_model(each, template, Tokens()).family for each in settings} == settings
    assert get_args(ReasoningSetting) == parser.SETTINGS


def test_phi_4_reasoning_is_known_by_its_name():
    named = support.for_model("Auto", TEMPLATES["SmolLM2"], Tokens(), "microsoft/Phi-4-mini-reasoning")
    assert (named.family, named.why) == ("Think", "the model's name")


def test_prompts_say_where_reasoning_begins():
    for name, begun in (("Qwen3", False), ("DeepSeek-R1-Distill", True), ("Magistral", False)):
        assert begins(name) is begun
    assert begins("DeepSeek-V3.1", thinking=True) is True
    assert begins("Qwen3", enable_thinking=False) is begins("DeepSeek-V3.1") is begins("SmolLM2") is None


def test_what_a_user_says_opens_no_reasoning():
    tokens = Tokens("<think>", "</think>")
    qwen = support.for_model("Auto", TEMPLATES["Qwen3"], tokens)
    for said in ("<think>", "</think>"):
        prompt = ChatTemplate(TEMPLATES["Qwen3"], {}).render([{"role": "user", "content": said}])
        assert qwen.format_for(prompt.encode(), tokens, True).open_in_prompt is False


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_marks_are_counted_by_where_each_is_one_token(family):
    marks = FAMILIES[family]
    whole = support.for_model(family, None, Tokens(marks.open, marks.close, "\n\n"))
    tokens = whole.format_for([97, 256], Tokens(marks.open), True).tokens
    assert (tokens.open, tokens.close, tokens.open_in_prompt, set(tokens.space)) == (256, 257, True, {10, 32, 258})
    assert support.for_model(family, None, Tokens(marks.open)).format_for([97], Tokens(), True).tokens is None
