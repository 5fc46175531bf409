"""Calls of functions in responses: what the model is told, and the items and events of what it writes."""

import json
import random
from typing import Any

import pytest
from openai.types.responses import Response
from tests.support.response_events import ask, events, kinds, read, replayed

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


def say(gateway: Any, text: str, finish: str = "stop", size: int = 3) -> None:
    """The model writes this, a few characters at a time."""
    gateway.script(*(Delta(0, text[at : at + size]) for at in range(0, len(text), size)), Delta(0, "", (), finish))


def told(items: Any) -> list[Any]:
    """Items without their ids."""
    return [
        (item["type"], item["status"], item["content"][0]["text"])
        if item["type"] == "message"
        else (item["type"], item["status"], item["name"], item["arguments"])
        for item in items
    ]


async def test_calls_come_back_as_the_official_client_has_them(gateway: Any) -> None:
    say(gateway, f"A moment.\n{FIRST}\n{SECOND}")
    answer = await gateway.client.responses.create(model="tiny", input="hi", tools=[WEATHER, NOW])
    said, *calls = answer.output
    assert (said.type, answer.output_text, answer.status) == ("message", "A moment.", "completed")
    assert [(call.name, call.arguments) for call in calls] == CALLED
    assert {(call.type, call.status) for call in calls} == {("function_call", "completed")}
    assert len({call.call_id for call in calls} | {call.id for call in calls}) == 4
    assert [tool.name for tool in answer.tools] == ["get_weather", "now"]


async def test_the_official_stream_helper_puts_calls_together(gateway: Any) -> None:
    say(gateway, FIRST + SECOND)
    async with gateway.client.responses.stream(model="tiny", input="hi", tools=[WEATHER, NOW]) as stream:
        found = [event async for event in stream]
        final = await stream.get_final_response()
    assert [(call.name, call.arguments) for call in final.output] == CALLED
    deltas = [event for event in found if event.type == "response.function_call_arguments.delta"]
    assert deltas[-1].snapshot == "{}"


async def test_events_come_item_by_item(gateway: Any) -> None:
    say(gateway, f"A moment. {FIRST} And {SECOND}", size=1000)
    found = await events(gateway, tools=[WEATHER, NOW])
    message = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done"]
    message += ["content_part.done", "output_item.done"]
    call = ["output_item.added", *["function_call_arguments." + each for each in ("delta", "done")], "output_item.done"]
    begin = ["created", "in_progress"]
    expected = [*begin, *message, *call, *message, *call, "completed"]
    assert kinds(found) == [f"response.{kind}" for kind in expected]
    assert replayed(found) == found[-1]["response"]["output"]


async def test_the_model_is_told_of_the_same_tools_as_in_a_chat(make: Any) -> None:
    gateway = make(template="{{ tools }}<tool_call>")
    flat = {**WEATHER, "description": "Says it."}
    await ask(gateway, tools=[flat])
    shown = gateway.tokens.given
    within = {key: value for key, value in flat.items() if key != "type"}
    await gateway.chat(tools=[{"type": "function", "function": within}])
    assert shown == gateway.tokens.given
    assert shown["tools"][0]["function"]["description"] == "Says it."


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
async def test_a_call_can_be_required(gateway: Any, choice: Any) -> None:
    say(gateway, FIRST)
    answer = await ask(gateway, tools=[WEATHER, NOW], tool_choice=choice)
    grammar = gateway.relay.requests[0].params.grammar
    assert "get_weather" in grammar
    assert ("now" in grammar) == (choice == "required")
    Response.model_validate(answer.json())
    assert answer.json()["tool_choice"] == choice
    assert told(answer.json()["output"]) == [("function_call", "completed", *CALLED[0])]


async def test_none_tells_the_model_of_no_tools(gateway: Any) -> None:
    say(gateway, FIRST)
    answer = (await ask(gateway, tools=[WEATHER], tool_choice="none")).json()
    assert told(answer["output"]) == [("message", "completed", FIRST)]
    assert gateway.tokens.messages == [{"role": "user", "content": "hi"}]


async def test_arguments_of_strict_functions_match(gateway: Any) -> None:
    await ask(gateway, tools=[{**WEATHER, "strict": True}])
    assert "city" in gateway.relay.requests[0].params.grammar


@pytest.mark.parametrize("stream", [False, True])
async def test_only_the_first_call_is_told_where_calls_may_not_be_parallel(gateway: Any, stream: bool) -> None:
    say(gateway, FIRST + SECOND)
    asked: Any = {"tools": [WEATHER, NOW], "parallel_tool_calls": False}
    answer = (await events(gateway, **asked))[-1]["response"] if stream else (await ask(gateway, **asked)).json()
    assert told(answer["output"]) == [("function_call", "completed", *CALLED[0])]
    assert answer["parallel_tool_calls"] is False


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_was_cut_off_is_incomplete(gateway: Any, stream: bool) -> None:
    say(gateway, FIRST[:60], "length")
    asked: Any = {"tools": [WEATHER]}
    answer = (await events(gateway, **asked))[-1]["response"] if stream else (await ask(gateway, **asked)).json()
    ((kind, status, name, arguments),) = told(answer["output"])
    assert (answer["status"], kind, status, name) == ("incomplete", "function_call", "incomplete", "get_weather")
    assert CALLED[0][1].startswith(arguments)


async def test_an_answer_without_calls_is_text(gateway: Any) -> None:
    say(gateway, "Paris. \n")
    found = await events(gateway, tools=[WEATHER])
    assert told(found[-1]["response"]["output"]) == [("message", "completed", "Paris. \n")]


def test_whatever_pieces_text_comes_in_the_items_are_the_same() -> None:
    """Streamed or at once."""
    parts = ["One. ", FIRST, "\n", SECOND, "Two < three", "<tool_call>", " no call", FIRST[:40], " ", ""]
    format = AnswerFormat(CallFormat("Hermes", frozenset({"get_weather", "now"})))
    known = {"id": "resp_1", "object": "response"}
    draw = random.Random(5)
    for number in range(200):
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
