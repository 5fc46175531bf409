"""Chats become the text that transformers makes of them, and a template that refuses one says why."""

import pytest
import transformers
from tokenizer_files import write_folder

from legato_gateway.tokenizer.chat_template import ChatTemplate, TemplateFault
from legato_gateway.tokenizer.tokens import ModelTokenizer, TokenizeError

TRIMS = "{% for m in messages %}[{{ m.role }}: {{ m.content | trim }}]{% endfor %}"


def test_the_chat_template_of_the_built_in_model(tokens, reference):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    for given_messages in (messages, messages[1:]):
        expected = reference.apply_chat_template(given_messages, tokenize=False, add_generation_prompt=True)
        assert tokens.render_chat(given_messages) == expected
        assert tokens.encode_chat(given_messages) == reference(expected, add_special_tokens=False)["input_ids"]
    assert tokens.eos_ids == (0, 2)
    assert tokens.vocab_size == 49152
    assert tokens.token_bytes(2) == b"<|im_end|>"
    assert tokens.token_bytes(10**6) == b""


@pytest.mark.parametrize("said", ["Sure", "Sure, ", " it is\n", "a<|im_end|>\nb", "x" * 500])
@pytest.mark.parametrize("template", [None, TRIMS])
def test_a_message_is_continued_where_transformers_does(tokens, reference, said, template):
    messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": said}]
    expected = reference.apply_chat_template(
        messages, tokenize=False, continue_final_message=True, chat_template=template
    )
    if template is None:
        assert tokens.render_chat(messages, {"add_generation_prompt": False}, continued=True) == expected
    else:
        assert ChatTemplate(template, {}).render_continued(messages) == expected


def test_it_is_known_which_variables_a_template_takes(tmp_path, trained):
    loaded = ModelTokenizer.load(write_folder(tmp_path, trained, chat_template="{% if tools %}x{% endif %}"))
    assert loaded.template_takes("tools")
    assert not loaded.template_takes("documents")


def test_templates_get_what_they_expect(tmp_path, trained):
    """transformers' functions and filters, its whitespace rules, loop controls and the marks for training."""
    template = """
    {%- for m in messages %}
        {%- if loop.index > 2 %}{% break %}{% endif %}
        {% generation %}
[{{ m | tojson }}]
        {% endgeneration %}
    {%- endfor %}
{{ strftime_now('%Y')[:2] }}{% if add_generation_prompt %}>{% endif %}{{ bos_token }}{{ tools is none }}"""
    write_folder(tmp_path, trained, bos_token="<|begin|>")
    (tmp_path / "chat_template.jinja").write_text(template)
    messages = [{"role": "user", "content": f"<{i}é>"} for i in range(4)]
    shown = ModelTokenizer.load(tmp_path).render_chat(messages)
    expected = "".join(f'[{{"role": "user", "content": "<{i}é>"}}]\n' for i in range(2))
    assert shown == f"{expected}20><|begin|>True"
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained, bos_token="<|begin|>", chat_template=template
    )
    assert shown == theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


STRICT = """{% for m in messages %}{% if not loop.first and m.role in ('system', loop.previtem.role) %}
{{ raise_exception('roles must alternate') }}{% endif %}{{ m.role[0] }}({{ m.content }}){% endfor %}"""
ROLES = {"s": "system", "u": "user", "a": "assistant"}
ORDERS = [
    ("ssuu", "s(0\n1)u(2\n3)"),
    ("suas", "s(0)u(1)a(2)u(3)"),
    ("uusau", "u(0\n1\n2)a(3)u(4)"),
    ("uau", "u(0)a(1)u(2)"),
]


@pytest.mark.parametrize(("order", "shown"), ORDERS)
def test_a_strict_template_gets_messages_in_the_order_that_it_asks_for(order, shown):
    """Codex sends several messages of the system and of the user in a row, and later ones of the system."""
    messages = [{"role": ROLES[role], "content": str(number)} for number, role in enumerate(order)]
    assert ChatTemplate(STRICT, {}).render(messages) == shown
    assert ChatTemplate(TRIMS, {}).render(messages).count("[") == len(messages), "other templates get them as they are"


def test_a_strict_template_still_refuses_what_has_no_such_order():
    with pytest.raises(TemplateFault, match="roles must alternate"):
        ChatTemplate(STRICT, {}).render([{"role": role, "content": "x"} for role in ("user", "assistant", "assistant")])


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0]['content'] + 1 }}", "cannot take these messages"),
        ("{{ messages[9].content.x }}", "cannot take these messages"),
        ("{{ ''.__class__.__mro__ }}", "cannot take these messages"),
        ("{{ messages.append(1) }}", "cannot take these messages"),
        ("{% for i in range(10**9) %}{% endfor %}", "cannot take these messages"),
    ],
)
def test_a_template_that_refuses_is_an_error_of_the_request(tmp_path, trained, template, text):
    loaded = ModelTokenizer.load(write_folder(tmp_path, trained, chat_template=template))
    with pytest.raises(TokenizeError, match=text):
        loaded.encode_chat([{"role": "user", "content": "hi"}])
