"""Chats as the official client sees them."""

import json
from typing import Any

import openai
import pytest

from legato_gateway.errors import WorkerFailed
from legato_gateway.request import Delta

HI: Any = [{"role": "user", "content": "hi"}]


def events(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def test_an_answer_is_what_the_official_client_expects(gateway):
    answer = await gateway.client.chat.completions.create(model="tiny", messages=HI)
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Paris é!", "stop")
    assert (answer.object, answer.model, answer.system_fingerprint) == ("chat.completion", "tiny", "fp")
    assert answer.id.startswith("chatcmpl-")
    assert answer._request_id == answer.id
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("user: hi\n")
    assert answer.usage.completion_tokens == 3
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 3
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    assert choice.logprobs is None


async def test_a_stream_says_the_same_and_ends_with_usage_where_wanted(gateway):
    stream = await gateway.client.chat.completions.create(
        model="tiny", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Paris é!"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 3
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_a_stream_without_usage_has_no_such_field_and_ends_with_done(gateway):
    response = await gateway.chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")
    assert all("usage" not in event for event in events(response.text))


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_carry_bytes_and_alternatives(gateway, stream):
    fields = {"model": "tiny", "messages": HI, "logprobs": True, "top_logprobs": 2, "stream": stream}
    answer = await gateway.client.chat.completions.create(**fields)
    choices = [chunk.choices[0] async for chunk in answer] if stream else [answer.choices[0]]
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    assert [token.token for token in tokens] == ["P", " ", "!"]
    assert tokens[0].bytes == [ord("P")]
    assert tokens[0].logprob == -0.5
    assert [(top.token, top.bytes) for top in tokens[0].top_logprobs] == [("P", [80]), ("z", [122])]
    assert gateway.relay.requests[0].params.logprobs == 2


async def test_text_that_is_held_back_makes_no_event(gateway):
    gateway.script(Delta(0, ""), Delta(0, "é"), Delta(0, "", finish="length"))
    found = events((await gateway.chat(stream=True)).text)
    assert [event["choices"][0]["delta"] for event in found] == [
        {"role": "assistant", "content": ""},
        {"content": "é"},
        {},
    ]
    assert found[-1]["choices"][0]["finish_reason"] == "length"


async def test_parameters_reach_the_relay_as_meant(gateway):
    penalties = {"presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1}
    sampling = {"temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "seed": -1}
    lengths = {"min_tokens": 2, "max_completion_tokens": 9, "max_tokens": 5, "stop": ["a", "b", "a"]}
    asked = {"n": 2, "user": "u", "stop_token_ids": [7, 256], "priority": -3, "cache_salt": "salt"}
    asked |= {"logit_bias": {"65": 5, "66": -1.5}}
    asked |= {"top_logprobs": 0, "logprobs": True}
    headers = {"x-legato-deadline": "2m", "x-legato-tenant": "team"}
    await gateway.chat(headers, **sampling, **penalties, **lengths, **asked)
    (request,) = gateway.relay.requests
    params = request.params
    assert bytes(request.prompt) == b"user: hi\n"
    assert (request.deadline, request.tenant, request.priority, request.cache_salt) == (120, "team", 3, "shared\0salt")
    assert (request.choices, request.stop) == (2, ("a", "b"))
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0, 0.5, 0, 0.1)
    assert (params.max_tokens, params.min_tokens, params.seed) == (9, 2, 2**64 - 1)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (1, -1, 1.1)
    assert params.logit_bias == {65: 5, 66: -1.5}
    assert params.stop_token_ids == (256, 7)
    assert params.logprobs == 0


async def test_defaults_fill_the_context_draw_a_seed_and_stop_at_the_end_of_sequence(gateway):
    for _ in range(2):
        await gateway.chat(user="u")
    await gateway.chat(ignore_eos=True)
    first, second, third = gateway.relay.requests
    assert first.params.max_tokens == 1000 - len("user: hi\n")
    assert first.params.seed != second.params.seed
    assert first.params.stop_token_ids == (256,)
    assert third.params.stop_token_ids == ()
    assert (first.tenant, first.deadline) == ("", 600)


async def test_text_parts_are_joined_and_developer_is_system(gateway):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    await gateway.chat(messages=[{"role": "developer", "content": "d"}, {"role": "user", "content": parts}])
    assert bytes(gateway.relay.requests[0].prompt) == b"system: d\nuser: ab\n"


async def test_what_fails_later_ends_the_stream_with_an_error_event(gateway):
    gateway.script(Delta(0, "Par"), WorkerFailed("gone", part="decode"))
    said = []
    stream = await gateway.client.chat.completions.create(model="tiny", messages=HI, stream=True)

    async def read() -> None:
        async for chunk in stream:
            said.append(chunk.choices[0].delta.content or "")

    with pytest.raises(openai.APIError, match="gone"):
        await read()
    assert "".join(said) == "Par"
    gateway.script(Delta(0, "Par"), WorkerFailed("gone", part="decode"))
    response = await gateway.chat(stream=True)
    assert "[DONE]" not in response.text
    error = {"message": "gone", "type": "server_error", "param": None, "code": "worker_failed", "part": "decode"}
    assert events(response.text)[-1]["error"] == error


@pytest.mark.parametrize(("header", "priority"), [("7", 7), ("-2", -2), (None, 3)])
async def test_the_header_of_priorities_goes_before_the_field(gateway, header, priority):
    """In the header higher goes first; in the body lower does, as in vLLM."""
    await gateway.chat({"x-legato-priority": header} if header else None, priority=-3)
    assert gateway.relay.requests[0].priority == priority
