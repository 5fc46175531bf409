"""Responses as the official client sees them: text, what ends it, and what goes wrong."""

import json
import pickle

import pytest
from openai.types.responses import Response
from pydantic import BaseModel
from tests.support.response_events import ask, events, expected, kinds, replayed

from legato_gateway.clients.client import Client
from legato_gateway.errors import WorkerFailed
from legato_gateway.openai.responses import prepare
from legato_gateway.request import Delta, Usage
from legato_gateway.serving.deadline import Deadline
from legato_gateway.serving.model_serving import ModelServing, ServedModel
from legato_gateway.serving.prepared_request import Asked
from legato_gateway.serving.writer import CollectedChoice


class Fox(BaseModel):
    name: str


async def test_an_answer_is_what_the_official_client_expects(gateway):
    answer = await gateway.client.responses.create(model="tiny", input="hi", metadata={"a": "b"}, user="me")
    (item,) = answer.output
    assert (answer.output_text, answer.status, answer.error) == ("Paris é!", "completed", None)
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    assert answer.id.startswith("resp_")
    assert answer._request_id == answer.id
    assert (answer.model, answer.metadata, answer.user) == ("tiny", {"a": "b"}, "me")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len("user: hi\n"), 3)
    assert answer.usage.total_tokens == answer.usage.input_tokens + 3
    assert answer.usage.input_tokens_details.cached_tokens == 4
    assert gateway.tokens.messages == [{"role": "user", "content": "hi"}]
    assert gateway.entries[-1].id == answer.id


async def test_a_body_is_all_that_the_clients_types_ask_for(gateway):
    asked = {"instructions": "Be brief.", "temperature": 0.5, "top_p": 0.9, "max_output_tokens": 9, "max_tool_calls": 3}
    asked |= {"prompt_cache_key": "k", "safety_identifier": "s", "previous_response_id": None, "tools": []}
    asked |= {"reasoning": {"effort": None}, "tool_choice": "auto", "truncation": "disabled"}
    answer = (await ask(gateway, **asked)).json()
    Response.model_validate(answer)
    not_here = {
        "access_programs",
        "conversation",
        "image",
        "input_transformations",
        "moderation",
        "prompt",
        "tool_usage",
    }
    caching = {"prompt_cache_diagnostics", "prompt_cache_options", "prompt_cache_retention"}
    assert set(Response.model_fields) - not_here - caching <= set(answer)
    echoed = {**asked, "reasoning": {"effort": None, "summary": None}}
    assert {key: answer[key] for key in asked} == echoed
    assert answer["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert (answer["store"], answer["background"], answer["service_tier"]) == (False, False, "default")


async def test_a_stream_tells_the_same_in_the_order_that_clients_expect(gateway):
    found = await events(gateway)
    assert kinds(found) == expected("message")
    assert replayed(found) == found[-1]["response"]["output"]
    assert "".join(event["delta"] for event in found if "delta" in event) == "Paris é!"
    first, last = found[0]["response"], found[-1]["response"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    assert last["id"] == first["id"]
    assert last["output"] == [found[-2]["item"]]
    assert last["output"][0]["content"][0]["text"] == "Paris é!"
    assert last["usage"]["output_tokens"] == 3
    assert len({event["item_id"] for event in found if "item_id" in event}) == 1


async def test_the_official_stream_helper_gives_the_final_response(gateway):
    async with gateway.client.responses.stream(model="tiny", input="hi") as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(deltas) == final.output_text == "Paris é!"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_cut_off_is_incomplete(gateway, stream):
    gateway.script(Delta(0, "Par"), Delta(0, "is", (), "length"))
    if stream:
        found = await events(gateway, max_output_tokens=2)
        assert kinds(found)[-1] == "response.incomplete"
        answer = found[-1]["response"]
    else:
        answer = (await ask(gateway, max_output_tokens=2)).json()
    Response.model_validate(answer)
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (answer["output"][0]["status"], answer["output"][0]["content"][0]["text"]) == ("incomplete", "Paris")
    assert (answer["completed_at"], answer["max_output_tokens"]) == (None, 2)
    assert gateway.relay.requests[0].params.max_tokens == 2


async def test_parse_gives_the_model(gateway):
    gateway.script(Delta(0, '{"name": '), Delta(0, '"Reineke"}', (), "stop"))
    answer = await gateway.client.responses.parse(model="tiny", input="hi", text_format=Fox)
    assert answer.output_parsed == Fox(name="Reineke")
    assert json.loads(gateway.relay.requests[0].params.grammar)["properties"]["name"] == {
        "title": "Name",
        "type": "string",
    }
    assert answer.text.format.type == "json_schema"
    assert answer.text.format.name == "Fox"
    gateway.script(Delta(0, '{"name": "Reineke"}', (), "stop"))
    async with gateway.client.responses.stream(model="tiny", input="hi", text_format=Fox) as stream:
        assert (await stream.get_final_response()).output_parsed == Fox(name="Reineke")


async def test_a_stream_that_fails_ends_with_the_failed_response(gateway):
    gateway.script(Delta(0, "Par"), WorkerFailed("the worker died", part="decode"))
    found = await events(gateway)
    assert kinds(found)[-2:] == ["response.output_text.delta", "response.failed"]
    failed = found[-1]["response"]
    assert failed["status"] == "failed"
    assert failed["error"] == {"code": "worker_failed", "message": "the worker died", "part": "decode"}
    (item,) = failed["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "Par")


async def test_a_body_that_is_prepared_elsewhere_keeps_its_writer(gateway):
    """Long bodies are prepared in other processes, so what comes of them is pickled."""
    gateway.tokens.before = len  # anything that can be pickled
    raw = bytearray(b'{"input": "hi", "metadata": {"a": "b"}, "tools": [], "prompt_cache_key": "k"}')
    asked = Asked(Client(), {}, Deadline(0.0, 60.0, lambda: 0.0))
    serving = ModelServing(gateway.tokens, ServedModel("tiny", 100))
    checked = prepare.prepare(serving, asked, raw)
    raw.clear()  # a BufferError if a part of it were kept, which keeps all of it
    made = pickle.loads(pickle.dumps(checked)).writer
    answer = json.loads(made.whole([CollectedChoice(0, ["Paris"], [], "stop")], Usage(3, 1, 0)))
    assert (answer["metadata"], answer["tools"]) == ({"a": "b"}, [])
    assert answer["prompt_cache_key"] == "k"
    assert answer["output"][0]["content"][0]["text"] == "Paris"
