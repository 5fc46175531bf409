"""Tools as Anthropic's official client sees them."""

import json
import random
from typing import Any

import anthropic
import pytest

from legato_gateway.anthropic.writer import BlockEvents, gathered
from legato_gateway.openai.answer import AnswerFormat
from legato_gateway.openai.tools.definitions import CallFormat

TEMPLATE = "{{ tools }} <tool_call>"  # Hermes'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [{"name": "weather", "description": "Tells it.", "input_schema": SCHEMA}]
HI: Any = [{"role": "user", "content": "hi"}]
ASKED: Any = {"model": "tiny", "max_tokens": 50, "messages": HI, "tools": TOOLS}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Pa\\"ris"}}\n</tool_call>'
TWO = f"Let me see.\n{CALL}\n{CALL}"
INPUT = {"city": 'Pa"ris'}


@pytest.fixture
def gateway(make: Any) -> Any:
    return make(template=TEMPLATE)


@pytest.fixture
def client(gateway: Any, connect: Any) -> anthropic.AsyncAnthropic:
    return connect(gateway)


async def test_calls_are_streamed_while_they_are_written(gateway, client):
    gateway.say(TWO, size=20)
    kinds, arguments = [], ""
    async with client.messages.stream(**ASKED) as stream:
        async for event in stream:
            kinds.append(event.type)
            if event.type == "input_json":
                arguments += event.partial_json
        answer = await stream.get_final_message()
    assert arguments == json.dumps(INPUT) * 2
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    assert [getattr(block, "input", None) for block in answer.content] == [None, INPUT, INPUT]
    assert answer.stop_reason == "tool_use"
    assert len({block.id for block in answer.content[1:] if block.id.startswith("toolu_")}) == 2


@pytest.mark.parametrize("text", [TWO, CALL, "no call, <tool_call> {", f"{CALL}\nand text behind", "é" * 9])
def test_random_cuts_of_text_give_the_same_blocks(text):
    def blocks(pieces: list[str]) -> list[Any]:
        events = BlockEvents(AnswerFormat(CallFormat("Hermes", frozenset({"weather"}))))
        told = [event for piece in pieces[:-1] for event in events.push(piece, None)]
        told += events.push(pieces[-1], "stop")
        starts = [event["index"] for event in told if event["type"] == "content_block_start"]
        stops = [event["index"] for event in told if event["type"] == "content_block_stop"]
        assert starts == stops == list(range(len(starts)))
        return [{key: value for key, value in block.items() if key != "id"} for block in gathered(told)]

    source, expected = random.Random(text), blocks([text])
    for _ in range(100):
        cuts = sorted(source.choices(range(len(text) + 1), k=source.randrange(1, 12)))
        assert blocks([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]) == expected


async def test_results_go_back_to_the_model_in_their_order(gateway, client):
    gateway.say(TWO)
    answer = await client.messages.create(**ASKED)
    first, second = (block.id for block in answer.content[1:])
    results: Any = [
        {"type": "tool_result", "tool_use_id": first, "content": "rain"},
        {"type": "tool_result", "tool_use_id": second, "content": [{"type": "text", "text": "no"}], "is_error": True},
        {"type": "text", "text": "so?"},
    ]
    turns = [*HI, {"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    await client.messages.create(**{**ASKED, "messages": turns})
    _, said, rain, error, asked = gateway.tokens.messages
    assert [call["function"] for call in said["tool_calls"]] == [{"name": "weather", "arguments": INPUT}] * 2
    assert (rain["role"], rain["name"], rain["content"]) == ("tool", "weather", "rain")
    assert (error["tool_call_id"], error["content"]) == (second, "Error: no")
    assert asked == {"role": "user", "content": "so?"}


async def test_a_call_that_is_cut_off_has_what_is_complete_of_it(gateway, client):
    cut = CALL[: CALL.index("ris")].replace('{"city": ', '{"n": 1, "city": ')
    for stream in (False, True):
        gateway.say(cut, "length", 8)
        if stream:
            async with client.messages.stream(**ASKED) as events:
                answer = await events.get_final_message()
        else:
            answer = await client.messages.create(**ASKED)
        assert (answer.stop_reason, answer.content[0].input) == ("max_tokens", {"n": 1})


async def test_arguments_that_are_no_json_are_told_as_such(gateway, client):
    gateway.say(CALL.replace('"Pa\\"ris"', "Paris"))
    (block,) = (await client.messages.create(**ASKED)).content
    assert block.input == {"INVALID_JSON": '{"city": Paris}'}
