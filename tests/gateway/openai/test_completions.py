"""Text completions as the official client sees them."""

import json
from typing import Any

import pytest

from legato_gateway.errors import WorkerFailed
from legato_gateway.request import Delta, GenerationRequest


async def test_an_answer_is_what_the_official_client_expects(gateway):
    answer = await gateway.client.completions.create(model="tiny", prompt="hi")
    choice = answer.choices[0]
    assert (answer.object, choice.text, choice.finish_reason, choice.index) == (
        "text_completion",
        "Paris é!",
        "stop",
        0,
    )
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 3)
    assert gateway.relay.requests[0].params.max_tokens == 16


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", [["hi", "you"], [[104, 105], [121, 111, 117]]])
async def test_several_prompts_have_n_answers_each(gateway, stream, prompt):
    def named(request: GenerationRequest) -> list[Delta]:
        name = bytes(request.prompt).decode()
        return [Delta(choice, f"{name}{choice}", (), "stop") for choice in range(request.choices)]

    gateway.relay.script = named
    answer = await gateway.client.completions.create(model="tiny", prompt=prompt, n=2, stream=stream)
    if stream:
        said = {chunk.choices[0].index: chunk.choices[0].text async for chunk in answer}
    else:
        said = {choice.index: choice.text for choice in answer.choices}
        assert answer.usage.prompt_tokens == 5
        assert answer.usage.completion_tokens == 4
    assert said == {0: "hi0", 1: "hi1", 2: "you0", 3: "you1"}


async def test_one_failing_prompt_fails_the_request_and_stops_the_others(gateway):
    def one_fails(request: GenerationRequest) -> list[Any]:
        return [WorkerFailed("gone")] if bytes(request.prompt) == b"bad" else [Delta(0, "x", (), "stop")]

    gateway.relay.script = one_fails
    response = await gateway.complete(prompt=["good", "bad"])
    assert response.status_code == 502
    assert all(generation.cancelled.is_set() for generation in gateway.relay.generations)


async def test_a_prompt_of_token_ids_is_taken_as_it_is(gateway):
    await gateway.complete(prompt=[1, 2, 3])
    assert gateway.relay.requests[0].prompt == (1, 2, 3)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["hi", [104, 105]])
async def test_echo_puts_the_prompt_before_each_answer(gateway, stream, prompt):
    answer = await gateway.client.completions.create(model="tiny", prompt=prompt, echo=True, n=2, stream=stream)
    said = {0: "", 1: ""}
    if stream:
        async for chunk in answer:
            said[chunk.choices[0].index] += chunk.choices[0].text
    else:
        said = {choice.index: choice.text for choice in answer.choices}
    assert said == {0: "hiParis é!", 1: "hiParis é!"}


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_have_offsets_and_alternatives(gateway, stream):
    answer = await gateway.client.completions.create(model="tiny", prompt="hi", logprobs=2, stream=stream)
    choices = [chunk.choices[0] async for chunk in answer] if stream else answer.choices
    found = [choice.logprobs for choice in choices if choice.logprobs]
    assert [token for part in found for token in part.tokens] == ["P", " ", "!"]
    assert [offset for part in found for offset in part.text_offset] == [0, 5, 7]
    assert [logprob for part in found for logprob in part.token_logprobs] == [-0.5] * 3
    assert found[0].top_logprobs[0] == {"P": -0.5, "z": -3.0}


async def test_the_routes_of_several_prompts_are_explained_one_by_one(gateway):
    response = await gateway.complete({"x-legato-explain": "true"}, prompt=["a", "b", "c"])
    routes = json.loads(response.headers["x-legato-route"])
    assert [route["decode"] for route in routes] == ["decode-0"] * 3
    assert [len(request.id.split("-")) for request in gateway.relay.requests] == [3, 3, 3]
    assert len({request.id for request in gateway.relay.requests}) == 3
