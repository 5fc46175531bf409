"""Calls of functions and reasoning in responses: what the model is told, and the items and events of what it writes."""

import json
import random
from typing import Any

import pytest
from budget import times
from tests.support.response_events import ask, events, expected, kinds, read, replayed

from legato_gateway.openai.answer import AnswerFormat
from legato_gateway.openai.responses.writer import ResponseWriter
from legato_gateway.openai.tools.definitions import CallFormat
from legato_gateway.request import Delta, Usage
from legato_gateway.serving.writer import CollectedChoice

PARAMETERS: Any = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: Any = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": None}
NOW: Any = {"type": "function", "name": "now", "parameters": None, "strict": None}
FIRST = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
CALLED = [("get_weather", '{"city": "Köln"}'), ("now", "{}")]


def told(items: Any) -> list[Any]:
    """Items without their ids."""
    return [
        (item["type"], item["status"], item["content"][0]["text"])
        if item["type"] == "message"
        else (item["type"], item["status"], item["name"], item["arguments"])
        for item in items
    ]


async def test_calls_come_back_as_the_official_client_has_them(gateway):
    gateway.say(f"A moment.\n{FIRST}\n{SECOND}")
    answer = await gateway.client.responses.create(model="tiny", input="hi", tools=[WEATHER, NOW])
    said, *calls = answer.output
    assert (said.type, answer.output_text, answer.status) == ("message", "A moment.", "completed")
    assert [(call.name, call.arguments) for call in calls] == CALLED
    assert {(call.type, call.status) for call in calls} == {("function_call", "completed")}
    assert len({call.call_id for call in calls} | {call.id for call in calls}) == 4
    assert [tool.name for tool in answer.tools] == ["get_weather", "now"]


async def test_the_official_stream_helper_puts_calls_together(gateway):
    gateway.say(FIRST + SECOND)
    async with gateway.client.responses.stream(model="tiny", input="hi", tools=[WEATHER, NOW]) as stream:
        found = [event async for event in stream]
        final = await stream.get_final_response()
    assert [(call.name, call.arguments) for call in final.output] == CALLED
    deltas = [event for event in found if event.type == "response.function_call_arguments.delta"]
    assert deltas[-1].snapshot == "{}"


async def test_events_come_item_by_item(gateway):
    gateway.say(f"A moment. {FIRST} And {SECOND}", size=1000)
    found = await events(gateway, tools=[WEATHER, NOW])
    assert kinds(found) == expected("message", "call", "message", "call")
    assert replayed(found) == found[-1]["response"]["output"]


async def test_the_model_is_told_of_the_same_tools_as_in_a_chat(make):
    gateway = make(template="{{ tools }}<tool_call>")
    flat = {**WEATHER, "description": "Says it."}
    await ask(gateway, tools=[flat])
    shown = gateway.tokens.given
    within = {key: value for key, value in flat.items() if key != "type"}
    await gateway.chat(tools=[{"type": "function", "function": within}])
    assert shown == gateway.tokens.given
    assert shown["tools"][0]["function"]["description"] == "Says it."


async def test_arguments_of_strict_functions_match(gateway):
    await ask(gateway, tools=[{**WEATHER, "strict": True}])
    assert "city" in gateway.relay.requests[0].params.grammar


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_was_cut_off_is_incomplete(gateway, stream):
    gateway.say(FIRST[:60], "length")
    asked: Any = {"tools": [WEATHER]}
    answer = (await events(gateway, **asked))[-1]["response"] if stream else (await ask(gateway, **asked)).json()
    ((kind, status, name, arguments),) = told(answer["output"])
    assert (answer["status"], kind, status, name) == ("incomplete", "function_call", "incomplete", "get_weather")
    assert CALLED[0][1].startswith(arguments)


def test_whatever_pieces_text_comes_in_the_items_are_the_same():
    """Streamed or at once."""
    parts = ["One. ", FIRST, "\n", SECOND, "Two < three", "<tool_call>", " no call", FIRST[:40], " ", ""]
    format = AnswerFormat(CallFormat("Hermes", frozenset({"get_weather", "now"})))
    known = {"id": "resp_1", "object": "response"}
    draw = random.Random(5)
    for number in range(times(50)):
        text = "".join(draw.choices(parts, k=draw.randint(0, 6)))
        finish = draw.choice(["stop", "length"])
        usual = {"created_at": 1, "model": "m", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        made = ResponseWriter({**known, **usual}, False, lambda _: b"", format)
        whole = json.loads(made.whole([CollectedChoice(0, [text], [], finish)], Usage()))
        writer = ResponseWriter({**known, **usual}, False, lambda _: b"", format)
        said, at = b"", 0
        while at < len(text):
            size = draw.randint(1, 9 if number % 2 else 60)
            said += writer.delta(0, Delta(0, text[at : at + size]))
            at += size
        said += writer.delta(0, Delta(0, "", (), finish)) + writer.end(Usage())
        found = read(said.decode())
        output = found[-1]["response"]["output"]
        assert replayed(found) == output
        assert told(output) == told(whole["output"])
        assert found[-1]["response"]["status"] == whole["status"]


# ── what a model reasons, an item of its own before the message ─────────────────────────────────────────────────────

REASONED = "<think>\nLet me see.\n</think>\n\nParis."
SWITCH = "{{ enable_thinking }}<think>"


async def test_reasoning_comes_before_the_message(make):
    gateway = make(template=SWITCH)
    gateway.say(REASONED)
    answer = await gateway.client.responses.create(model="tiny", input="hi")
    reasoning, message = answer.output
    assert (reasoning.type, reasoning.status, reasoning.summary) == ("reasoning", "completed", [])
    assert [(part.type, part.text) for part in reasoning.content] == [("reasoning_text", "Let me see.")]
    assert (message.type, answer.output_text) == ("message", "Paris.")
    again = [item.model_dump() for item in answer.output]
    assert (await ask(gateway, input=[*again, {"role": "user", "content": "And?"}])).status_code == 200


async def test_reasoning_is_streamed(make):
    gateway = make(template=SWITCH)
    gateway.say(REASONED)
    found = await events(gateway)
    assert kinds(found) == expected("reasoning", "message")
    done = replayed(found)
    assert [item["type"] for item in done] == ["reasoning", "message"]
    assert done == found[-1]["response"]["output"]


async def test_effort_reaches_the_template(make):
    gateway = make(template=SWITCH)
    assert (await ask(gateway, reasoning={"effort": "none"})).status_code == 200
    assert gateway.tokens.given == {"enable_thinking": False}
    error = (await ask(make(template="<think>"), reasoning={"effort": "low"})).json()["error"]
    assert error["param"] == "reasoning.effort"
    assert error["message"].startswith("reasoning.effort 'low' is not supported")
