"""Tools as Anthropic's official client sees them."""

import json
import random
from typing import Any

import anthropic
import pytest

from legato_gateway.anthropic.writer import BlockEvents, gathered
from legato_gateway.openai.answer import AnswerFormat
from legato_gateway.openai.tools.definitions import CallFormat
from legato_gateway.request import Delta

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


def say(gateway: Any, text: str, *sizes: int, finish: str = "stop") -> None:
    """The model says `text` in pieces of these sizes."""
    pieces, at = [], 0
    for size in sizes:
        pieces.append(Delta(0, text[at : at + size]))
        at += size
    gateway.script(*pieces, Delta(0, text[at:], (), finish))


async def test_calls_are_blocks(gateway: Any, client: Any) -> None:
    say(gateway, TWO)
    answer = await client.messages.create(**ASKED)
    assert [block.type for block in answer.content] == ["text", "tool_use", "tool_use"]
    assert answer.content[0].text == "Let me see."
    assert [(block.name, block.input) for block in answer.content[1:]] == [("weather", INPUT)] * 2
    assert answer.content[1].id.startswith("toolu_")
    assert answer.content[1].id != answer.content[2].id
    assert answer.stop_reason == "tool_use"


async def test_calls_are_streamed_while_they_are_written(gateway: Any, client: Any) -> None:
    say(gateway, TWO, 5, 30, 20, 10)
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


@pytest.mark.parametrize("text", [TWO, CALL, "no call, <tool_call> {", f"{CALL}\nand text behind", "é" * 9])
def test_random_cuts_of_text_give_the_same_blocks(text: str) -> None:
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


@pytest.mark.parametrize(
    ("choice", "required"),
    [({"type": "auto"}, False), ({"type": "any"}, True), ({"type": "tool", "name": "weather"}, True)],
)
async def test_a_choice_that_requires_a_call_is_obeyed(gateway: Any, client: Any, choice: Any, required: bool) -> None:
    say(gateway, CALL)
    await client.messages.create(**ASKED, tool_choice=choice)
    assert bool(gateway.relay.requests[0].params.grammar) == required
    assert [tool["function"]["name"] for tool in gateway.tokens.given["tools"]] == ["weather"]


async def test_with_none_the_model_is_told_of_no_tools(gateway: Any, client: Any) -> None:
    say(gateway, CALL)
    answer = await client.messages.create(**ASKED, tool_choice={"type": "none"})
    assert not gateway.tokens.given.get("tools")
    assert [block.type for block in answer.content] == ["text"]


async def test_parallel_calls_can_be_left_off(gateway: Any, client: Any) -> None:
    say(gateway, TWO)
    answer = await client.messages.create(**ASKED, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [block.type for block in answer.content] == ["text", "tool_use"]


async def test_results_go_back_to_the_model_in_their_order(gateway: Any, client: Any) -> None:
    say(gateway, TWO)
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


async def test_a_call_that_is_cut_off_has_what_is_complete_of_it(gateway: Any, client: Any) -> None:
    cut = CALL[: CALL.index("ris")].replace('{"city": ', '{"n": 1, "city": ')
    for stream in (False, True):
        say(gateway, cut, 8, finish="length")
        if stream:
            async with client.messages.stream(**ASKED) as events:
                answer = await events.get_final_message()
        else:
            answer = await client.messages.create(**ASKED)
        assert (answer.stop_reason, answer.content[0].input) == ("max_tokens", {"n": 1})


async def test_arguments_that_are_no_json_are_told_as_such(gateway: Any, client: Any) -> None:
    say(gateway, CALL.replace('"Pa\\"ris"', "Paris"))
    (block,) = (await client.messages.create(**ASKED)).content
    assert block.input == {"INVALID_JSON": '{"city": Paris}'}


async def test_an_answer_can_be_made_to_match_a_schema(gateway: Any, client: Any) -> None:
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    await client.messages.create(model="tiny", max_tokens=9, messages=HI, output_config=config)
    assert json.loads(gateway.relay.requests[0].params.grammar) == SCHEMA
