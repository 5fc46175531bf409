"""Tools as clients see them: what a model is told, what comes back of its calls, and what is refused."""

import json
from itertools import product
from typing import Any

import pytest

from legato_gateway.request import Delta

HI: Any = [{"role": "user", "content": "hi"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
UNUSABLE = {"type": "object", "patternProperties": 5}
STRICT: Any = {"type": "function", "function": {"name": "f", "strict": True, "parameters": UNUSABLE}}
NOW: Any = {"type": "function", "function": {"name": "now"}}
CALLS = (
    'A moment.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
CALLED = [("get_weather", '{"city": "Köln"}'), ("now", "{}")]
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]}


@pytest.mark.parametrize("stream", [False, True])
async def test_functions_are_called_in_the_older_form(gateway, stream):
    gateway.say(CALLS)
    given: Any = {"model": "tiny", "messages": HI, "functions": [WEATHER["function"], NOW["function"]]}
    answer = await gateway.client.chat.completions.create(**given, stream=stream)
    choices = [chunk.choices[0] async for chunk in answer] if stream else answer.choices
    said = [choice.delta if stream else choice.message for choice in choices]
    called = [each.function_call for each in said if each.function_call]
    assert ("".join(call.name or "" for call in called), "".join(call.arguments or "" for call in called)) == CALLED[0]
    assert choices[-1].finish_reason == "function_call"
    assert all(each.tool_calls is None for each in said)


async def test_results_of_functions_are_passed_on_as_those_of_tools(make):
    gateway = make(template="{{ tools }}<tool_call>")
    called = {"role": "assistant", "function_call": {"name": "now", "arguments": ""}}
    result = {"role": "function", "name": "now", "content": "12:00"}
    await gateway.chat(messages=[*HI, called, result], functions=[NOW["function"]])
    _, call, told = gateway.tokens.messages
    assert call["tool_calls"][0]["function"] == {"name": "now", "arguments": {}}
    assert told == {"role": "tool", "content": "12:00", "name": "now", "tool_call_id": call["tool_calls"][0]["id"]}
    assert gateway.tokens.given["tools"] == [NOW]


async def test_the_template_gets_tools_and_calls_as_transformers_gives_them(make):
    gateway = make(template="{{ tools }}<tool_call>")
    await gateway.chat(messages=[*HI, ASKED, RESULT], tools=[WEATHER])
    assert gateway.tokens.given == {"tools": [WEATHER]}
    function = {"name": "get_weather", "arguments": {"city": "Paris"}}
    _, call, result = gateway.tokens.messages
    assert call["tool_calls"] == [{"id": "call_1", "type": "function", "function": function}]
    assert result == {"role": "tool", "content": "rain", "tool_call_id": "call_1", "name": "get_weather"}


async def test_a_template_without_tools_gets_them_in_the_system_message(gateway):
    await gateway.chat(messages=[{"role": "system", "content": "Be brief."}, *HI, ASKED, RESULT], tools=[WEATHER])
    first, hi, call, result = gateway.tokens.messages
    assert first["content"].startswith("Be brief.\n\n")
    assert json.dumps(WEATHER["function"]) in first["content"]
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>' in call["content"]
    assert (hi, result["role"], "rain" in result["content"]) == (HI[0], "user", True)


async def test_mistral_is_given_ids_and_markers_that_it_knows(make):
    gateway = make(template="{{ tools }}[TOOL_CALLS]")
    gateway.say('[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Bonn"}}]')
    answer = (await gateway.chat(messages=[*HI, ASKED, RESULT], tools=[WEATHER])).json()
    _, call, result = gateway.tokens.messages
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]
    new = answer["choices"][0]["message"]["tool_calls"][0]["id"]
    assert all(len(id) == 9 and id.isalnum() for id in (new, result["tool_call_id"]))
    assert gateway.relay.requests[0].shown_tokens == {256}
    await gateway.chat()
    assert gateway.relay.requests[1].shown_tokens == frozenset()


async def test_an_answer_ends_where_the_model_would_make_up_a_result(make):
    gateway = make(template="{{ tools }}<|tool_call>call:", marks=("<|tool_response>",))
    assert (await gateway.chat(tools=[NOW])).status_code == 200
    assert gateway.relay.requests[0].params.stop_token_ids == (256, 257)


@pytest.mark.parametrize(("family", "mark"), [("DeepSeek", "<｜tool▁call▁begin｜>"), ("KimiK2", "<|tool_call_begin|>")])
async def test_earlier_calls_are_as_the_template_of_the_family_takes_them(make, family, mark):
    gateway = make(template="{{ tools }}" + mark)
    assert (await gateway.chat(messages=[*HI, ASKED, RESULT], tools=[WEATHER])).status_code == 200
    _, call, result = gateway.tokens.messages
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]
    if family == "KimiK2":
        assert result["tool_call_id"] == "functions.get_weather:0"
    else:
        assert call["tool_calls"][0]["function"]["arguments"] == CALL["function"]["arguments"]


WRONG: list[tuple[dict[str, Any], str, str | None]] = [
    ({"tools": "x"}, "tools", None),
    ({"tools": [5]}, "tools[0]", None),
    ({"tools": [{"type": "function"}]}, "tools[0].function", None),
    ({"tools": [NOW] * 1025}, "tools", None),
    ({"tools": [{"type": "function", "function": {"name": "f", "description": "x" * (1 << 19)}}]}, "tools", None),
    ({"tools": [NOW, NOW]}, "tools[1].function.name", None),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", None),
    ({"tool_choice": "required", "functions": [{"name": "f"}]}, "tool_choice", None),
    ({"tool_choice": "some"}, "tool_choice", None),
    ({"function_call": {"name": "f"}}, "function_call", None),
    ({"function_call": {"name": "now"}, "tools": [NOW]}, "function_call", None),
    ({"function_call": "some"}, "function_call", None),
    ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call", None),
    ({"tools": [STRICT]}, "tools[0].function.parameters", None),
    ({"functions": [{"name": "f"}, {"name": "f"}]}, "functions[1].name", None),
    ({"functions": [{"name": "f"}], "tools": [NOW]}, "functions", None),
    ({"messages": [RESULT]}, "messages[0].tool_call_id", None),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", None),
    ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].name", None),
    ({"messages": [ASKED | {"role": "user"}]}, "messages[0].tool_calls", None),
    ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "messages[0].tool_calls[0]", None),
]


async def test_what_is_wrong_is_named(gateway):
    for fields, param, code in WRONG:
        answer = await gateway.chat(**fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, param, code), error
    assert gateway.relay.generations == []


async def test_a_choice_that_requires_no_call_needs_no_tools(make):
    """Semantic Kernel sends `none`, and LiteLLM and Dapr Agents `auto`, whether they have tools or not."""
    gateway = make(template="{{ tools }}<tool_call>")
    gateway.script(Delta(0, CALLS, (), "stop"))
    nothing: Any = ({}, {"tools": []}, {"tools": None}, {"functions": []})
    for none, choice, field in product(nothing, ("auto", "none", None), ("tool_choice", "function_call")):
        answer = await gateway.chat(**none, **{field: choice})
        assert answer.status_code == 200, answer.text
        message = answer.json()["choices"][0]["message"]
        assert (message["content"], message.get("tool_calls")) == (CALLS, None)
        assert gateway.relay.requests[-1].params.grammar == ""
        assert not gateway.tokens.given.get("tools")


DASHED = {"type": "function", "function": {"name": "get-weather"}}
UNREADABLE = [  # settings, a tool, the field that is refused, and why
    ({"template": "{{ tools }}", "tool_call_parser": "Pythonic"}, DASHED, "tools[0].function.name", ""),
    ({"tool_call_parser": "Mistral"}, NOW, "tools", "template takes none"),  # they are described in two formats
    ({"tool_call_parser": "Off"}, NOW, "tools", "toolCallParser"),
    ({"template": "{{ tools }} in a way of its own"}, NOW, "tools", "toolCallParser"),
]


async def test_tools_are_refused_where_calls_could_not_be_read(make):
    for options, tool, param, why in UNREADABLE:
        error = (await make(**options).chat(tools=[tool])).json()["error"]
        assert (error["param"], why in error["message"]) == (param, True)
        assert (error["code"] == "unsupported_value") == (param == "tools")
        assert tool is DASHED or (await make(**options).chat(tools=[tool], tool_choice="none")).status_code == 200
    assert (await make(tool_call_parser="Hermes").chat(tools=[DASHED])).status_code == 200


async def test_a_parser_that_is_set_is_used_whatever_the_template_says(make):
    gateway = make(template="{{ tools }}<tool_call>", tool_call_parser="Llama3Json")
    gateway.say('{"name": "now", "parameters": {}}')
    answer = (await gateway.chat(tools=[NOW])).json()
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("depth", [100, 400, 900, 5000])
async def test_deep_nesting_is_no_fault_of_ours(gateway, depth):
    parameters = '{"a": ' * depth + "1" + "}" * depth
    tools = f'[{{"type": "function", "function": {{"name": "f", "parameters": {parameters}}}}}]'
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": parameters}}
    messages = json.dumps([{"role": "assistant", "tool_calls": [call]}])
    body = f'{{"model": "tiny", "tools": {tools}, "messages": {messages}}}'
    answer = await gateway.http.post("/v1/chat/completions", content=body.encode())
    assert answer.status_code in (200, 400), answer.text
