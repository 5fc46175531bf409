"""What a chat template is told beside the messages' text: variables, effort, and what was reasoned before."""

from typing import Any

import pytest

from legato_gateway.openai.reasoning import template_variables
from legato_gateway.tokenizer.chat_template import ChatTemplate

SWITCH = "{{ enable_thinking }}<think>"
GRADED = "{{ reasoning_effort }}{{ thinking }}[THINK]"
ALWAYS = "<think>"


async def given(gateway: Any, **body: Any) -> dict[str, Any]:
    response = await gateway.chat(**body)
    assert response.status_code == 200, response.text
    return dict(gateway.tokens.given)


async def refused(gateway: Any, **body: Any) -> dict[str, Any]:
    response = await gateway.chat(**body)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


async def test_variables_reach_the_template(make):
    for template in (SWITCH, None):
        gateway = make(template=template)
        variables = {"enable_thinking": False, "lang": ["é", None, {"a": 1}], "self": 1, "most": 2, "variables": 3}
        assert await given(gateway, chat_template_kwargs=variables) == variables
        for nothing in ({}, None):
            assert await given(gateway, chat_template_kwargs=nothing) == {}


@pytest.mark.parametrize(
    "name", ["messages", "tools", "add_generation_prompt", "documents", "chat_template", "bos_token", "raise_exception"]
)
async def test_reserved_names_are_refused(gateway, name):
    error = await refused(gateway, chat_template_kwargs={"a": 1, name: False})
    assert error["param"] == f"chat_template_kwargs.{name}"
    assert name in error["message"]


@pytest.mark.parametrize("variables", [[], "enable_thinking", 5, {"a": "x" * template_variables.MAX_BYTES}])
async def test_other_things_than_an_object_of_bounded_size_are_refused(gateway, variables):
    assert (await refused(gateway, chat_template_kwargs=variables))["param"] == "chat_template_kwargs"


async def test_variables_that_are_nested_without_end_are_refused(gateway):
    deep = "[" * 20_000 + "]" * 20_000
    raw = '{"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"a": ' + deep + "}}"
    assert (await gateway.http.post("/v1/chat/completions", content=raw)).status_code == 400


@pytest.mark.parametrize(
    ("template", "effort", "expected"),
    [
        (SWITCH, "none", {"enable_thinking": False}),
        (SWITCH, "minimal", {"enable_thinking": True}),
        (SWITCH, "high", {"enable_thinking": True}),
        (GRADED, "low", {"reasoning_effort": "low", "thinking": True}),
        (GRADED, "none", {"reasoning_effort": "none", "thinking": False}),
        (None, "none", {}),
    ],
)
async def test_effort_is_told_in_the_templates_own_variables(make, template, effort, expected):
    assert await given(make(template=template), reasoning_effort=effort) == expected
    assert await given(make(template=template), reasoning_effort=None) == {}


async def test_a_variable_that_is_given_by_name_goes_before_effort(make):
    body = {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False, "lang": "de"}}
    assert await given(make(template=SWITCH), **body) == {"enable_thinking": False, "lang": "de"}


@pytest.mark.parametrize(
    ("template", "effort", "why"),
    [
        (ALWAYS, "none", "has no variable for it"),
        (ALWAYS, "high", "has no variable for it"),
        (None, "low", "does not reason"),
        (SWITCH, "extreme", "none, minimal, low, medium, high, xhigh, max"),
    ],
)
async def test_effort_is_refused_where_nothing_means_it(make, template, effort, why):
    error = await refused(make(template=template), reasoning_effort=effort)
    assert error["param"] == "reasoning_effort"
    assert why in error["message"]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_earlier_reasoning_is_told_by_both_names(gateway, name):
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", name: "because"}]
    await given(gateway, messages=[*said, {"role": "user", "content": "c"}])
    thought = {"reasoning_content": "because", "reasoning": "because"}
    assert gateway.tokens.messages[1] == {"role": "assistant", "content": "b", **thought}
    assert "reasoning" not in gateway.tokens.messages[0]
    error = await refused(gateway, messages=[{"role": "user", "content": "a", name: "because"}])
    assert error["param"] == f"messages[0].{name}"


async def test_an_answer_comes_back_as_a_message(make):
    """What clients do with tools: the message of the answer is the next request's, fields that are null included."""
    gateway = make(template=SWITCH)
    message = (await gateway.chat()).json()["choices"][0]["message"]
    assert message["reasoning"] is None
    await given(gateway, messages=[{"role": "user", "content": "a"}, message, {"role": "user", "content": "b"}])
    assert gateway.tokens.messages[1] == {"role": "assistant", "content": "Paris é!"}


def test_a_template_sees_variables_of_any_name_and_its_own_messages():
    template = ChatTemplate(
        "{{ messages[0].content }}{{ most }}{{ variables }}{% if not thinking %}<think>{% endif %}", {}
    )
    variables = {"most": 1, "variables": 2, "messages": [], "self": 3, "thinking": False}
    assert template.render([{"role": "user", "content": "hi"}], variables) == "hi12<think>"
