"""What workers are asked to hold reasoning to: a budget, and a grammar behind it."""

import json
from typing import Any

import msgspec
import pytest

from legato_gateway.request import Delta
from legato_protocol.reasoning import ReasoningBounds, ReasoningTokens
from legato_protocol.sampling_limits import MAX_GRAMMAR_BYTES
from legato_protocol.sampling_params import JSON_SCHEMA, REASONING, REGEX, RULES

MARKED: Any = {"template": "{{ tools }}<tool_call><think>", "marks": ("<think>", "</think>")}
NOW: Any = {"type": "function", "function": {"name": "now"}}
SCHEMA: Any = {"type": "object", "properties": {"city": {"const": "Paris"}}, "required": ["city"]}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}


async def asked(gateway: Any, **body: Any) -> Any:
    """The parameters of the request that the relay is given."""
    response = await gateway.chat(**body)
    assert response.status_code == 200, response.text
    return gateway.relay.requests[-1].params


def bounds_of(params: Any) -> ReasoningBounds:
    assert params.grammar_kind == REASONING
    return msgspec.json.decode(params.grammar, type=ReasoningBounds)


@pytest.mark.parametrize("turn", ["", "<think>\n"])
async def test_a_budget_is_for_workers_to_hold(make, turn):
    gateway = make(**MARKED, turn=turn)
    bounds = bounds_of(await asked(gateway, thinking_token_budget=7, ignore_eos=True))
    assert bounds == ReasoningBounds(ReasoningTokens(257, 258, bool(turn), (10, 32)), 7)
    assert gateway.relay.requests[-1].params.stop_token_ids == (), "a budget ends no answer"
    assert bounds_of(await asked(gateway, thinking_token_budget=0)).budget == 0


async def test_without_a_budget_or_a_grammar_nothing_is_held(make):
    gateway = make(**MARKED)
    for body in ({}, {"thinking_token_budget": -1}, {"thinking_token_budget": None}):
        assert (await asked(gateway, **body)).grammar == ""


async def test_where_the_prompt_switches_reasoning_off_a_budget_changes_nothing(make):
    gateway = make(**MARKED, turn="<think>\n\n</think>\n\n")
    assert (await asked(gateway, thinking_token_budget=7)).grammar == ""
    assert (await asked(gateway, thinking_token_budget=7, response_format=FORMAT)).grammar_kind == JSON_SCHEMA


OFF = {**MARKED, "reasoning_parser": "Off"}
WHY: Any = [({}, "does not reason"), (OFF, "does not reason"), ({"template": "<think>"}, "several tokens")]


@pytest.mark.parametrize(("options", "why"), WHY)
async def test_a_budget_that_nobody_can_hold_is_refused(make, options, why):
    gateway = make(**options)
    error = (await gateway.chat(thinking_token_budget=7)).json()["error"]
    assert (error["param"], error["code"]) == ("thinking_token_budget", "unsupported_value")
    assert why in error["message"]
    assert (await asked(gateway, thinking_token_budget=-1)).grammar == ""


async def test_other_budgets_are_no_numbers_of_tokens(make):
    gateway = make(**MARKED)
    for budget in (-2, 2**31, "7", 1.5, True):
        response = await gateway.chat(thinking_token_budget=budget)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "thinking_token_budget")


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


async def test_an_answer_that_matches_is_read_behind_its_reasoning(make):
    gateway = make(**MARKED)
    gateway.script(Delta(0, '<think>\nParis.\n</think>{"city": "Paris"}', (), "stop"))
    message = (await gateway.chat(response_format=FORMAT)).json()["choices"][0]["message"]
    assert (message["reasoning"], json.loads(message["content"])) == ("Paris.", {"city": "Paris"})
    gateway.script(Delta(0, '<think>a</think><tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', (), "stop"))
    choice = (await gateway.chat(tools=[NOW], tool_choice="required")).json()["choices"][0]
    assert (choice["message"]["reasoning"], choice["finish_reason"]) == ("a", "tool_calls")


async def test_where_no_worker_knows_the_end_of_reasoning_the_grammar_begins_with_the_answer(make):
    gateway = make(template="<think>")
    gateway.script(Delta(0, '{"city": "Paris"}', (), "stop"))
    response = await gateway.chat(response_format=FORMAT)
    assert gateway.relay.requests[-1].params.grammar_kind == JSON_SCHEMA
    assert "reasoning" not in response.json()["choices"][0]["message"]


async def test_a_grammar_that_is_too_long_with_its_bounds_is_refused(make):
    choices = ['"' * 100 + str(number) for number in range(900)]
    body = {"guided_choice": choices}
    assert len((await asked(make(), **body)).grammar) < MAX_GRAMMAR_BYTES
    error = (await make(**MARKED).chat(**body)).json()["error"]
    assert (error["param"], error["type"]) == ("guided_choice", "invalid_request_error")
    assert str(MAX_GRAMMAR_BYTES) in error["message"]
