"""Which models reason, by the decisive lines of published templates, and where an answer's reasoning begins."""

import pytest

from legato_gateway.parsers.reasoning import families, support
from legato_gateway.parsers.reasoning.families import FAMILIES
from legato_gateway.settings import REASONING_PARSER
from legato_gateway.tokenizer.chat_template import ChatTemplate

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
    """Whether the answer's reasoning has begun in the prompt; None where it has none."""
    tokens = Tokens()
    prompt = ChatTemplate(TEMPLATES[name], {}).render(HI, variables).encode()
    format = support.of_model("Auto", TEMPLATES[name], tokens).of_prompt(prompt, tokens, True)
    return format.begun if format else None


def test_the_setting_names_all_families():
    assert families.SETTINGS == REASONING_PARSER


FAMILIES_OF = dict.fromkeys(("Qwen3", "DeepSeek-R1-Distill", "DeepSeek-V3.1"), "Think")
FAMILIES_OF |= {"Magistral": "Mistral", "SmolLM2": None}


@pytest.mark.parametrize(("name", "family"), FAMILIES_OF.items())
def test_templates_tell_the_family(name, family):
    assert families.of_template(TEMPLATES[name]) == family
    assert support.of_model("Auto", TEMPLATES[name], Tokens()).family == family
    assert support.of_model("Off", TEMPLATES[name], Tokens()).family is None
    assert support.of_model("Mistral", TEMPLATES[name], Tokens()).family == "Mistral"


def test_a_model_without_template_does_not_reason():
    assert families.of_template(None) is None


def test_prompts_say_where_reasoning_begins():
    for name, begun in (("Qwen3", False), ("DeepSeek-R1-Distill", True), ("Magistral", False)):
        assert begins(name) is begun
    assert begins("DeepSeek-V3.1", thinking=True) is True
    assert begins("Qwen3", enable_thinking=False) is begins("DeepSeek-V3.1") is begins("SmolLM2") is None


def test_what_a_user_says_opens_no_reasoning():
    tokens = Tokens("<think>", "</think>")
    qwen = support.of_model("Auto", TEMPLATES["Qwen3"], tokens)
    for said in ("<think>", "</think>"):
        prompt = ChatTemplate(TEMPLATES["Qwen3"], {}).render([{"role": "user", "content": said}])
        format = qwen.of_prompt(prompt.encode(), tokens, True)
        assert format is not None
        assert not format.begun


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_marks_are_counted_by_where_each_is_one_token(family):
    marks = FAMILIES[family]
    whole = support.of_model(family, None, Tokens(marks.open, marks.close, "\n\n"))
    format = whole.of_prompt([97, 256], Tokens(marks.open), True)
    assert format.tokens is not None
    assert (format.tokens.open, format.tokens.close, format.tokens.begun) == (256, 257, True)
    assert set(format.tokens.space) == {10, 32, 258}
    apart = support.of_model(family, None, Tokens(marks.open))
    assert apart.of_prompt([97], Tokens(), True).tokens is None
