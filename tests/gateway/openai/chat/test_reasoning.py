"""Reasoning in chats: in the answer, bounded by workers, and switched in the chat template."""

import json
from typing import Any

import msgspec
import pytest

from legato_gateway.openai.chat import template_variables
from legato_gateway.request import Delta, TokenText
from legato_protocol.sampling.limits import MAX_GRAMMAR_BYTES
from legato_protocol.sampling.parameters import JSON_SCHEMA, REASONING, REGEX, RULES
from legato_protocol.sampling.reasoning import ReasoningBounds, ReasoningTokens
from legato_protocol.wire.stream import TokenLogprobs

QWEN = "{{ tools }}<tool_call>{% if enable_thinking %}<think>"
THOUGHT = "<think>\nLet me see: é.\n</think>\n\nParis. \n"


ANSWERS: Any = [  # the end of the prompt, what the model writes, its reasoning, and its content
    ("<think>\n", "a</think>b", "a", "b"),
    ("<think>\n\n</think>\n\n", "a</think>b", None, "a</think>b"),
    ("", "Paris.", None, "Paris."),
]


async def test_a_prompt_may_end_within_reasoning_or_behind_it(make):
    for turn, text, reasoning, content in ANSWERS:
        gateway = make(template=QWEN, turn=turn)
        gateway.say(text)
        message = (await gateway.chat()).json()["choices"][0]["message"]
        named = {} if "</think>" in turn else dict.fromkeys(("reasoning_content", "reasoning"), reasoning)
        assert message == {"role": "assistant", "content": content, "refusal": None, **named}


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_is_left_out_where_the_client_wants_none(make, stream):
    gateway = make(template=QWEN)
    tokens = [TokenText(0, char, char.encode(), TokenLogprobs(-1.0, ()), at) for at, char in enumerate(THOUGHT)]
    gateway.script(*(Delta(0, token.text, (token,)) for token in tokens), Delta(0, "", (), "stop"))
    response = await gateway.chat(include_reasoning=False, stream=stream, logprobs=True)
    assert "reasoning" not in response.text
    assert "see" not in response.text
    lines = response.text.splitlines() if stream else ["data: " + response.text]
    choices = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    told = "".join(token["token"] for c in choices if c["logprobs"] for token in c["logprobs"]["content"])
    said = "".join(c.get("delta", c.get("message")).get("content", "") for c in choices)
    assert told == said == "Paris. \n"


async def test_marks_that_are_tokens_show_and_are_counted(make):
    gateway = make(template=QWEN, marks=("<think>", "</think>"), turn="<think>")
    gateway.say("a</think>b")
    await gateway.chat()
    (request,) = gateway.relay.requests
    assert (request.reasoning.open, request.reasoning.close, request.reasoning.open_in_prompt) == (257, 258, True)
    gateway = make(template="[THINK]", marks=("[THINK]", "[/THINK]"))
    gateway.say("[THINK]a[/THINK]b")
    assert (await gateway.chat()).json()["choices"][0]["message"]["reasoning"] == "a"
    (request,) = gateway.relay.requests
    assert request.shown_tokens == {257, 258}
    assert not request.reasoning.open_in_prompt


MARKED: Any = {"template": "{{ tools }}<tool_call><think>", "marks": ("<think>", "</think>")}
NOW: Any = {"type": "function", "function": {"name": "now"}}
SCHEMA: Any = {"type": "object", "properties": {"city": {"const": "Paris"}}, "required": ["city"]}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}


async def asked(gateway: Any, **body: Any) -> Any:
    """The parameters of the request that the relay is given."""
    response = await gateway.chat(**body)
    assert response.status_code == 200, response.text
    return gateway.relay.requests[-1].params


async def refused(gateway: Any, **body: Any) -> dict[str, Any]:
    response = await gateway.chat(**body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


def bounds_of(params: Any) -> ReasoningBounds:
    assert params.grammar_kind == REASONING
    return msgspec.json.decode(params.grammar, type=ReasoningBounds)


@pytest.mark.parametrize("turn", ["", "<think>\n"])
async def test_a_budget_is_for_workers_to_hold(make, turn):
    gateway = make(**MARKED, turn=turn)
    params = await asked(gateway, thinking_token_budget=7, ignore_eos=True)
    assert bounds_of(params) == ReasoningBounds(ReasoningTokens(257, 258, bool(turn), (10, 32)), 7)
    assert params.stop_token_ids == (), "a budget ends no answer"
    assert bounds_of(await asked(gateway, thinking_token_budget=0)).budget == 0
    assert bounds_of(await asked(gateway, reasoning_effort="none")).budget == 0, "its template has no switch"


async def test_where_nothing_is_bounded_or_the_prompt_switches_reasoning_off_nothing_is_held(make):
    gateway = make(**MARKED)
    for body in ({}, {"thinking_token_budget": -1}, {"thinking_token_budget": None}):
        assert (await asked(gateway, **body)).grammar == ""
    off = make(**MARKED, turn="<think>\n\n</think>\n\n")
    assert (await asked(off, thinking_token_budget=7)).grammar == ""
    assert (await asked(off, thinking_token_budget=7, response_format=FORMAT)).grammar_kind == JSON_SCHEMA


OFF = {**MARKED, "reasoning_parser": "Off"}


async def test_a_budget_that_nobody_can_hold_is_refused(make):
    """A model that does not reason keeps to any."""
    error = await refused(make(template="<think>"), thinking_token_budget=7)
    assert (error["param"], error["code"]) == ("thinking_token_budget", "unsupported_value")
    assert "several tokens" in error["message"]
    for options, budget in (({"template": "<think>"}, -1), ({}, 7), (OFF, 7)):
        assert (await asked(make(**options), thinking_token_budget=budget)).grammar == ""
    for budget in (-2, 2**31, "7", 1.5, True):
        assert (await refused(make(**MARKED), thinking_token_budget=budget))["param"] == "thinking_token_budget"


KINDS: Any = [
    ({"response_format": FORMAT}, JSON_SCHEMA),
    ({"guided_regex": "[0-9]+"}, REGEX),
    ({"tools": [NOW], "tool_choice": "required"}, RULES),
]


@pytest.mark.parametrize(("body", "kind"), KINDS)
async def test_a_grammar_begins_behind_reasoning(make, body, kind):
    plain = await asked(make(**MARKED, reasoning_parser="Off"), **body)
    params = await asked(make(**MARKED), **body, thinking_token_budget=9)
    bounds = bounds_of(params)
    assert (plain.grammar_kind, plain.grammar) == (bounds.grammar_kind, bounds.grammar)
    assert (bounds.grammar_kind, bounds.budget) == (kind, 9)
    assert params.stop_token_ids == plain.stop_token_ids != ()


async def test_a_grammar_that_is_too_long_with_its_bounds_is_refused(make):
    body = {"guided_choice": ['"' * 100 + str(number) for number in range(900)]}
    assert len((await asked(make(), **body)).grammar) < MAX_GRAMMAR_BYTES
    error = await refused(make(**MARKED), **body)
    assert (error["param"], error["type"]) == ("guided_choice", "invalid_request_error")
    assert str(MAX_GRAMMAR_BYTES) in error["message"]


SWITCH = "{{ enable_thinking }}<think>"
GRADED = "{{ reasoning_effort }}{{ thinking }}[THINK]"
ALWAYS = "<think>"


async def given(gateway: Any, **body: Any) -> dict[str, Any]:
    await asked(gateway, **body)
    return dict(gateway.tokens.given)


async def test_variables_reach_the_template(make):
    variables = {"enable_thinking": False, "lang": ["é", None, {"a": 1}], "self": 1, "most": 2, "variables": 3}
    for template in (SWITCH, None):
        gateway = make(template=template)
        assert await given(gateway, chat_template_kwargs=variables) == variables
        for nothing in ({}, None):
            assert await given(gateway, chat_template_kwargs=nothing) == {}


RESERVED = ("messages", "tools", "add_generation_prompt", "documents", "chat_template", "bos_token", "raise_exception")


async def test_reserved_names_and_other_things_than_an_object_of_bounded_size_are_refused(gateway):
    for name in RESERVED:
        error = await refused(gateway, chat_template_kwargs={"a": 1, name: False})
        assert error["param"] == f"chat_template_kwargs.{name}"
    for variables in ([], "enable_thinking", 5, {"a": "x" * template_variables.MAX_BYTES}):
        assert (await refused(gateway, chat_template_kwargs=variables))["param"] == "chat_template_kwargs"
    deep = (
        '{"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"a": ' + "[" * 20_000 + "]" * 20_000
    )
    assert (await gateway.http.post("/v1/chat/completions", content=deep + "}}")).status_code == 400


EFFORTS: Any = [
    (SWITCH, "none", {"enable_thinking": False}),
    (SWITCH, "minimal", {"enable_thinking": True}),
    (SWITCH, "high", {"enable_thinking": True}),
    (SWITCH, None, {}),
    (GRADED, "low", {"reasoning_effort": "low", "thinking": True}),
    (GRADED, "none", {"reasoning_effort": "none", "thinking": False}),
    (None, "none", {}),
    (None, "low", {}),
    (ALWAYS, "high", {}),
]
NO_EFFORTS: Any = [
    (ALWAYS, "none", "has no variable for it"),
    (SWITCH, "extreme", "none, minimal, low, medium, high, xhigh, max"),
]


async def test_effort_is_said_in_the_templates_own_variables_or_refused(make):
    for template, effort, expected in EFFORTS:
        assert await given(make(template=template), reasoning_effort=effort) == expected
    for template, effort, why in NO_EFFORTS:
        error = await refused(make(template=template), reasoning_effort=effort)
        assert (error["param"], why in error["message"]) == ("reasoning_effort", True)
    body = {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False, "lang": "de"}}
    assert await given(make(template=SWITCH), **body) == {"enable_thinking": False, "lang": "de"}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_earlier_reasoning_is_passed_on_by_both_names(gateway, name):
    user = {"role": "user", "content": "a"}
    await asked(gateway, messages=[user, {"role": "assistant", "content": "b", name: "because"}, user])
    thought = {"reasoning_content": "because", "reasoning": "because"}
    assert gateway.tokens.messages == [user, {"role": "assistant", "content": "b", **thought}, user]
    assert (await refused(gateway, messages=[{**user, name: "because"}]))["param"] == f"messages[0].{name}"


async def test_an_answer_comes_back_as_a_message(make):
    """Clients that use tools send the message of an answer with the next request, null fields included."""
    gateway = make(template=SWITCH)
    message = (await gateway.chat()).json()["choices"][0]["message"]
    assert message["reasoning"] is None
    await asked(gateway, messages=[{"role": "user", "content": "a"}, message])
    assert gateway.tokens.messages[1] == {"role": "assistant", "content": "Paris é!"}
