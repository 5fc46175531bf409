"""Responses as the official client sees them: text, calls, reasoning, what ends them, and what goes wrong."""

import json
import random
from typing import Any

import pytest
from budget import times
from openai.types.responses import Response
from pydantic import BaseModel
from tests.support.response_events import ask, events, expected, kinds, read, replayed

from legato_gateway.openai.chat.answer import AnswerFormat
from legato_gateway.openai.chat.tool_definitions import CallFormat
from legato_gateway.openai.responses.writer import ResponseWriter
from legato_gateway.request import Delta, Usage
from legato_gateway.serving.prepared_request import CollectedChoice


class Fox(BaseModel):
    name: str


NOT_HERE = {"access_programs", "conversation", "image", "input_transformations", "moderation", "prompt", "tool_usage"}
NOT_HERE |= {f"prompt_cache_{part}" for part in ("diagnostics", "options", "retention")}


async def test_a_body_is_all_that_the_clients_types_ask_for(gateway):
    asked = {"instructions": "Be brief.", "temperature": 0.5, "top_p": 0.9, "max_output_tokens": 9, "max_tool_calls": 3}
    asked |= {"prompt_cache_key": "k", "safety_identifier": "s", "previous_response_id": None, "tools": []}
    asked |= {"reasoning": {"effort": None}, "tool_choice": "auto", "truncation": "disabled"}
    asked |= {"metadata": {"a": "b"}, "user": "me"}
    answer = (await ask(gateway, **asked)).json()
    read = Response.model_validate(answer)
    assert (read.output_text, read.output[0].status, read.status, read.error) == ("Paris é!", *["completed"] * 2, None)
    assert read.usage.total_tokens == read.usage.input_tokens + 3
    assert set(Response.model_fields) - NOT_HERE <= set(answer)
    assert {key: answer[key] for key in asked} == {**asked, "reasoning": {"effort": None, "summary": None}}
    assert answer["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert (answer["store"], answer["background"], answer["service_tier"]) == (False, False, "default")


async def test_a_stream_has_the_events_that_clients_expect(gateway):
    found = await events(gateway)
    assert kinds(found) == expected("message")
    first, last = found[0]["response"], found[-1]["response"]
    assert replayed(found) == last["output"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    assert (last["id"], last["output"][0]["content"][0]["text"]) == (first["id"], "Paris é!")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_cut_off_is_incomplete(gateway, stream):
    gateway.script(Delta(0, "Par"), Delta(0, "is", (), "length"))
    found = await events(gateway) if stream else [{"response": (await ask(gateway)).json()}]
    answer = found[-1]["response"]
    Response.model_validate(answer)
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (answer["output"][0]["status"], answer["completed_at"]) == ("incomplete", None)
    assert not stream or found[-1]["type"] == "response.incomplete"


async def test_parse_gives_the_model(gateway):
    gateway.script(Delta(0, '{"name": '), Delta(0, '"Reineke"}', (), "stop"))
    answer = await gateway.client.responses.parse(model="tiny", input="hi", text_format=Fox)
    assert answer.output_parsed == Fox(name="Reineke")
    assert list(json.loads(gateway.relay.requests[0].params.grammar)["properties"]) == ["name"]
    assert (answer.text.format.type, answer.text.format.name) == ("json_schema", "Fox")
    async with gateway.client.responses.stream(model="tiny", input="hi", text_format=Fox) as stream:
        assert (await stream.get_final_response()).output_parsed == Fox(name="Reineke")


PARAMETERS: Any = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: Any = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": None}
NOW: Any = {"type": "function", "name": "now", "parameters": None, "strict": None}
FIRST = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def without_ids(items: Any) -> list[Any]:
    return [
        (item["type"], item["status"], *(item.get(key) for key in ("name", "arguments", "content"))) for item in items
    ]


PATCH: Any = {"type": "custom", "name": "patch", "description": "Edits files."}
GRAMMAR: Any = {"type": "grammar", "syntax": "lark", "definition": 'start: "+"'}
CRM: Any = {"type": "namespace", "name": "crm", "description": "", "tools": [WEATHER, {**PATCH, "format": GRAMMAR}]}
WRITTEN = [
    ("patch", '{"input": "+ \\"a\\"\\nb"}', ("custom_tool_call", "patch", None, '+ "a"\nb')),
    ("patch", '{"text": "a"}', ("custom_tool_call", "patch", None, '{"text": "a"}')),
    ("crm__patch", '{"input": ""}', ("custom_tool_call", "patch", "crm", "")),
    ("crm__get_weather", '{"city": "Köln"}', ("function_call", "get_weather", "crm", '{"city": "Köln"}')),
    ("now", "{}", ("function_call", "now", None, "{}")),
]


@pytest.mark.parametrize(("name", "arguments", "item"), WRITTEN)
async def test_calls_are_those_of_the_tools_that_the_client_has(gateway, name, arguments, item):
    """Functions are in the namespace of their name, and custom tools get text. Codex knows no other names."""
    gateway.say(f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>')
    functions = {"type": "namespace", "name": "functions", "description": "", "tools": [NOW]}
    found = await events(gateway, tools=[PATCH, CRM, functions])
    (call,) = replayed(found)
    said = call.get("input", call.get("arguments"))
    assert (call["type"], call["name"], call.get("namespace"), said) == item
    assert kinds(found) == expected("custom" if "input" in call else "call")
    assert found[-1]["response"]["output"] == [call]
    shown = gateway.tokens.messages[0]["content"]
    assert ("Edits files.\\nThe input has to match this grammar (lark):" in shown, "crm__get_weather" in shown) == (
        True,
        True,
    )


async def test_a_call_of_a_custom_tool_that_was_cut_off_has_what_was_written(gateway):
    gateway.say('<tool_call>\n{"name": "patch", "arguments": {"input": "+ a', "length")
    (call,) = (await ask(gateway, tools=[PATCH], tool_choice={"type": "custom", "name": "patch"})).json()["output"]
    assert (call["status"], call["input"]) == ("incomplete", "+ a")


async def test_events_come_item_by_item(gateway):
    gateway.say(f"A moment. {FIRST} And {SECOND}", size=1000)
    found = await events(gateway, tools=[WEATHER, NOW])
    assert kinds(found) == expected("message", "call", "message", "call")


async def test_the_model_is_given_the_same_tools_as_in_a_chat(make):
    gateway = make(template="{{ tools }}<tool_call>")
    flat = {**WEATHER, "description": "Says it.", "strict": True}
    await ask(gateway, tools=[flat])
    shown = gateway.tokens.given
    assert "city" in gateway.relay.requests[0].params.grammar, "arguments of strict functions match"
    await gateway.chat(tools=[{"type": "function", "function": {key: flat[key] for key in flat if key != "type"}}])
    assert shown == gateway.tokens.given
    assert shown["tools"][0]["function"]["description"] == "Says it."


def test_whatever_pieces_text_comes_in_the_items_are_the_same():
    parts = ["One. ", FIRST, "\n", SECOND, "Two < three", "<tool_call>", " no call", FIRST[:40], " ", ""]
    format = AnswerFormat(CallFormat("Hermes", {"get_weather": None, "now": None}))
    known = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m"}
    known |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    draw = random.Random(5)
    for number in range(times(50)):
        text = "".join(draw.choices(parts, k=draw.randint(0, 6)))
        finish = draw.choice(["stop", "length"])
        writer, other = (ResponseWriter({**known}, False, lambda _: b"", format, {}) for _ in range(2))
        whole = json.loads(other.whole([CollectedChoice(0, [text], [], finish)], Usage()))
        said, at = b"", 0
        while at < len(text):
            size = draw.randint(1, 9 if number % 2 else 60)
            said += writer.delta(0, Delta(0, text[at : at + size]))
            at += size
        found = read((said + writer.delta(0, Delta(0, "", (), finish)) + writer.end(Usage())).decode())
        streamed = found[-1]["response"]
        assert replayed(found) == streamed["output"]
        assert without_ids(streamed["output"]) == without_ids(whole["output"])
        assert streamed["status"] == whole["status"]


async def test_reasoning_comes_before_the_message(make):
    gateway = make(template="{{ enable_thinking }}<think>")
    gateway.say("<think>\nLet me see.\n</think>\n\nParis.")
    answer = await gateway.client.responses.create(model="tiny", input="hi")
    reasoning, message = answer.output
    assert (reasoning.type, reasoning.status, reasoning.summary) == ("reasoning", "completed", [])
    assert [(part.type, part.text) for part in reasoning.content] == [("reasoning_text", "Let me see.")]
    assert (message.type, answer.output_text) == ("message", "Paris.")
    found = await events(gateway)
    assert kinds(found) == expected("reasoning", "message")
    assert replayed(found) == found[-1]["response"]["output"]
    again = [item.model_dump() for item in answer.output]
    assert (await ask(gateway, input=[*again, {"role": "user", "content": "And?"}])).status_code == 200
