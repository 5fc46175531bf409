"""Conversations as templates of gpt-oss take them."""

import pytest

from legato_gateway.parsers.harmony import history
from legato_gateway.tokenizer.chat_template import ChatTemplate

# The conditions under which its templates show, drop or refuse parts of a message.
TEMPLATE = """{%- if messages[0].role == 'system' %}
{{- '<|start|>developer<|message|>' + messages[0].content }}<|end|>{% endif %}
{%- for tool in tools or [] %}{{ '// ' + tool.function.description }}{% endfor %}
{%- for m in messages %}
{%- if 'tool_calls' in m %}
{%- if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}
{%- if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}
{{- '<|start|>assistant to=functions.' + m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>
{{- m.tool_calls[0].function.arguments | tojson }}<|call|>
{%- elif m.role == 'assistant' %}
{%- if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content }}<|end|>
{%- elif m.role == 'tool' %}
{{- '<|start|>functions.' + m.name + ' to=assistant<|channel|>commentary<|message|>' + m.content }}<|end|>
{%- elif m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>
{%- endif %}{% endfor %}"""


def call(*names):
    return [{"id": name, "type": "function", "function": {"name": name, "arguments": {"a": 1}}} for name in names]


def said(content, thought="", *called):
    calls = {"tool_calls": call(*called)} if called else {}
    return {"role": "assistant", "content": content, "reasoning": thought, "reasoning_content": thought, **calls}


def result(name):
    return {"role": "tool", "content": f"of {name}", "tool_call_id": name, "name": name}


HI, SYSTEM = {"role": "user", "content": "hi"}, {"role": "system", "content": "Be brief."}
USER = "<|start|>user<|message|>hi<|end|>"


def thought(text):
    return f"<|start|>assistant<|channel|>analysis<|message|>{text}<|end|>"


def called(name):
    written = f'<|start|>assistant to=functions.{name}<|channel|>commentary json<|message|>{{"a": 1}}<|call|>'
    return f"{written}<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>of {name}<|end|>"


PLAN = "<|start|>assistant<|channel|>commentary<|message|>A plan.<|end|>"
DONE = "<|start|>assistant<|channel|>final<|message|>Done.<|end|>"
CONVERSATIONS = [  # reasoning stays between calls, and goes with a final answer
    ([HI, said("", "t1", "f"), result("f"), said("", "t2", "g"), result("g")],
     USER + thought("t1") + called("f") + thought("t2") + called("g")),
    ([HI, said("", "t1", "f"), result("f"), said("Done.", "t2"), HI], USER + called("f") + DONE + USER),
    ([HI, said("Done.", "t1"), HI, said("", "t2", "f"), result("f")],
     USER + DONE + USER + thought("t2") + called("f")),
    ([HI, said("Done.", "t1")], USER + thought("t1") + DONE),  # an answer to continue
    ([HI, said("A plan.", "t1", "f", "g"), result("g"), result("f")],
     USER + thought("t1") + PLAN + called("f") + called("g")),
    ([SYSTEM, SYSTEM, HI, SYSTEM],
     "<|start|>developer<|message|>Be brief.\n\nBe brief.<|end|>" + USER + USER.replace("hi", "Be brief.")),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "text"), CONVERSATIONS)
def test_reasoning_calls_and_results_are_written_as_the_model_has_learned_them(messages, text):
    given, variables = history.template_input(messages, [])
    assert ChatTemplate(TEMPLATE, {}).render(given, variables) == text


def test_functions_need_no_description():
    _, variables = history.template_input([HI], [{"type": "function", "function": {"name": "f"}}])
    assert ChatTemplate(TEMPLATE, {}).render([HI], variables) == "// " + USER
