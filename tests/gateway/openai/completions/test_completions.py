"""Text completions as the official client sees them, and the likeliest of several (`best_of`)."""

import json
from typing import Any

import pytest

from legato_gateway.errors import DeadlineExceeded, WorkerFailed
from legato_gateway.request import Delta, TokenText
from legato_protocol.wire.stream import TokenLogprobs


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", [["hi", "you"], [[104, 105], [121, 111, 117]]])
async def test_several_prompts_have_n_answers_each(gateway, stream, prompt):
    def named(request):
        name = bytes(request.prompt).decode()
        return [Delta(choice, f"{name}{choice}", (), "stop") for choice in range(request.choices)]

    gateway.relay.script = named
    answer = await gateway.client.completions.create(model="tiny", prompt=prompt, n=2, stream=stream)
    assert stream or answer.object == "text_completion"
    choices = [chunk.choices[0] async for chunk in answer] if stream else answer.choices
    assert {choice.index: choice.text for choice in choices} == {0: "hi0", 1: "hi1", 2: "you0", 3: "you1"}
    assert stream or (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 4)


async def test_one_failing_prompt_fails_the_request_and_stops_the_others(gateway):
    def one_fails(request):
        return [WorkerFailed("gone")] if bytes(request.prompt) == b"bad" else [Delta(0, "x", (), "stop")]

    gateway.relay.script = one_fails
    assert (await gateway.complete(prompt=["good", "bad"])).status_code == 502
    assert all(generation.cancelled.is_set() for generation in gateway.relay.generations)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_without_a_token_at_the_deadline_ends_empty_if_another_has_some(gateway, stream):
    def late(request):
        return [DeadlineExceeded("late")] if bytes(request.prompt) == b"bad" else [Delta(0, "x", (), "stop")]

    gateway.relay.script = late
    answer = await gateway.client.completions.create(model="tiny", prompt=["good", "bad"], stream=stream)
    choices = [chunk.choices[0] async for chunk in answer] if stream else answer.choices
    ends = {choice.index: (choice.text, choice.finish_reason, choice.stop_reason) for choice in choices}
    assert ends == {0: ("x", "stop", None), 1: ("", "length", "deadline")}
    assert (await gateway.complete(prompt=["bad", "bad"])).status_code == 504


async def test_the_routes_of_several_prompts_are_explained_one_by_one(gateway):
    response = await gateway.complete({"x-legato-explain": "true"}, prompt=["a", "b", "c"])
    routes = json.loads(response.headers["x-legato-route"])
    assert [route["decode"] for route in routes] == ["decode-0"] * 3
    ids = {request.id for request in gateway.relay.requests}
    assert [len(id.split("-")) for id in ids] == [3, 3, 3]


def said(choice, text, *logprobs, finish="stop"):
    tokens = [TokenText(ord("x"), "x", b"x", TokenLogprobs(logprob, ()), at) for at, logprob in enumerate(logprobs)]
    half = len(tokens) // 2
    ids = tuple(token.token for token in tokens)
    first = Delta(choice, text, tuple(tokens[:half]), None, ids[:half])
    return [first, Delta(choice, "", tuple(tokens[half:]), finish, ids[half:])]


ANSWERS: Any = [
    said(0, "long and likely enough", -1.0, -1.0, -1.0, -1.0),
    said(1, "short", -1.5),
    said(2, "likeliest", -0.5, -0.7, finish="length"),
    said(3, "nothing"),
    said(4, "as likely as the first", -0.5, -1.5),
]


def script(gateway, answers=ANSWERS):
    gateway.script(*(delta for answer in answers for delta in answer))


BEST = [  # fields, texts of the answer, and the log probabilities that workers are asked for
    ({"n": 3, "best_of": 5}, ["likeliest", "long and likely enough", "as likely as the first"], 0),
    ({"best_of": 5, "logprobs": 2}, ["likeliest"], 2),
    ({"n": 5, "best_of": 5}, [answer[0].text for answer in ANSWERS], None),
]


@pytest.mark.parametrize(("fields", "texts", "logprobs"), BEST)
async def test_the_best_by_mean_come_first_and_are_numbered_anew(gateway, fields, texts, logprobs):
    """If all are returned, they keep the order in which they were made."""
    script(gateway)
    answer = (await gateway.complete(**fields)).json()
    choices = answer["choices"]
    assert [(choice["index"], choice["text"]) for choice in choices] == list(enumerate(texts))
    assert [choice["finish_reason"] for choice in choices] == ["length" if t == "likeliest" else "stop" for t in texts]
    shown = [choice["logprobs"] and choice["logprobs"]["token_logprobs"] for choice in choices]
    assert shown == ([[-0.5, -0.7]] if "logprobs" in fields else [None] * len(texts))
    (request,) = gateway.relay.requests
    assert (request.choices, request.params.logprobs) == (5, logprobs)
    assert answer["usage"]["completion_tokens"] == 10, "all that was made has cost"


async def test_an_answer_of_no_tokens_comes_last_and_none_is_streamed_that_may_not_be_best(gateway):
    script(gateway, [said(0, "nothing"), said(1, "unlikely", -9.0), said(2, "as empty")])
    answer = (await gateway.complete(n=2, best_of=3)).json()
    assert [choice["text"] for choice in answer["choices"]] == ["unlikely", "nothing"]
    assert (await gateway.complete(n=2, best_of=2, stream=True)).status_code == 200


async def test_each_prompt_has_its_best(gateway):
    """With the prompt that it echoes, and its tokens."""
    gateway.relay.script = lambda request: [
        delta
        for choice in (0, 1)
        for delta in said(choice, f"{choice}", -1.0 if bytes(request.prompt) == b"%d" % choice else -2.0)
    ]
    fields = {"prompt": ["0", "1"], "best_of": 2, "echo": True, "return_token_ids": True}
    answer = (await gateway.complete(**fields)).json()
    told = [(choice["index"], choice["text"], choice["prompt_token_ids"]) for choice in answer["choices"]]
    assert told == [(0, "00", [ord("0")]), (1, "11", [ord("1")])]
