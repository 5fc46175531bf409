"""Reasoning as clients see it: beside the answer, streamed, with calls behind it, counted, and left out."""

import json
import pickle
from typing import Any

import pytest

from legato_gateway.openai.answer import AnswerFormat
from legato_gateway.parsers.reasoning.support import ReasoningFormat, ReasoningSupport
from legato_gateway.request import Delta, GenerationRequest, TokenText
from legato_protocol.reasoning import ReasoningTokens
from legato_protocol.sampling_params import SamplingParams
from legato_protocol.stream import TokenLogprobs

HI: Any = [{"role": "user", "content": "hi"}]
NOW: Any = {"type": "function", "function": {"name": "now"}}
QWEN = "{{ tools }}<tool_call>{% if enable_thinking %}<think>"
THOUGHT = "<think>\nLet me see: é.\n</think>\n\nParis. \n"
CALLED = '<think>\nI could write <tool_call>.\n</think>\n\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


async def streamed(gateway: Any, **options: Any) -> list[Any]:
    stream = await gateway.client.chat.completions.create(model="tiny", messages=HI, stream=True, **options)
    return [choice for chunk in [chunk async for chunk in stream] for choice in chunk.choices]


def joined(choices: list[Any], field: str, index: int = 0) -> str:
    return "".join(getattr(c.delta, field, None) or "" for c in choices if c.index == index)


async def test_reasoning_comes_beside_the_content(make):
    gateway = make(template=QWEN)
    gateway.say(THOUGHT)
    answer = await gateway.client.chat.completions.create(model="tiny", messages=HI)
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("Let me see: é.", "Paris. \n")
    assert message.reasoning == message.reasoning_content, "vLLM's newer name"
    assert answer.choices[0].finish_reason == "stop"


async def test_reasoning_is_streamed_before_the_content(make):
    gateway = make(template=QWEN)
    gateway.say(THOUGHT)
    choices = await streamed(gateway)
    assert joined(choices, "reasoning_content") == joined(choices, "reasoning") == "Let me see: é."
    assert joined(choices, "content") == "Paris. \n"
    kinds = ["content" if c.delta.content else "reasoning" for c in choices if c.delta.content or c.delta.model_extra]
    assert kinds == sorted(kinds, reverse=True)
    assert [c.finish_reason for c in choices if c.finish_reason] == ["stop"]


async def test_a_prompt_may_end_within_reasoning_or_behind_it(make):
    for turn, found in (("<think>\n", ("a", "b")), ("<think>\n\n</think>\n\n", (None, "a</think>b"))):
        gateway = make(template=QWEN, turn=turn)
        gateway.say("a</think>b")
        message = (await gateway.chat()).json()["choices"][0]["message"]
        assert (message.get("reasoning_content"), message["content"]) == found


async def test_an_answer_without_reasoning_says_so(make):
    gateway = make(template=QWEN)
    gateway.say("Paris.")
    message = (await gateway.chat()).json()["choices"][0]["message"]
    none = dict.fromkeys(("refusal", "reasoning_content", "reasoning"))
    assert message == {"role": "assistant", "content": "Paris.", **none}


async def test_models_that_do_not_reason_have_no_such_field(gateway, make):
    for each in (gateway, make(template=QWEN, reasoning_parser="Off")):
        each.say(THOUGHT)
        message = (await each.chat()).json()["choices"][0]["message"]
        assert message == {"role": "assistant", "content": THOUGHT, "refusal": None}


async def test_every_choice_has_reasoning_of_its_own(make):
    gateway = make(template=QWEN)
    gateway.say(THOUGHT, choices=3)
    answer = await gateway.client.chat.completions.create(model="tiny", messages=HI, n=3)
    assert [choice.message.reasoning_content for choice in answer.choices] == ["Let me see: é."] * 3
    gateway.say(THOUGHT, choices=2)
    choices = await streamed(gateway, n=2)
    assert [joined(choices, "reasoning", index) for index in range(2)] == ["Let me see: é."] * 2


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_is_left_out_where_the_client_wants_none(make, stream):
    gateway = make(template=QWEN)
    tokens = [TokenText(0, char, char.encode(), TokenLogprobs(-1.0, ()), at) for at, char in enumerate(THOUGHT)]
    gateway.script(*(Delta(0, token.text, (token,)) for token in tokens), Delta(0, "", (), "stop"))
    response = await gateway.chat(include_reasoning=False, stream=stream, logprobs=True)
    assert "reasoning" not in response.text
    assert "see" not in response.text
    lines = response.text.splitlines() if stream else ["data: " + response.text]
    choices = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    told = "".join(token["token"] for c in choices if c["logprobs"] for token in c["logprobs"]["content"])
    said = "".join(c.get("delta", c.get("message")).get("content", "") for c in choices)
    assert told == said == "Paris. \n"


async def test_marks_that_are_tokens_show_and_are_counted(make):
    gateway = make(template=QWEN, marks=("<think>", "</think>"), turn="<think>")
    gateway.say("a</think>b")
    await gateway.chat()
    (request,) = gateway.relay.requests
    assert (request.reasoning.open, request.reasoning.close, request.reasoning.begun) == (257, 258, True)
    gateway = make(template="[THINK]", marks=("[THINK]", "[/THINK]"))
    gateway.say("[THINK]a[/THINK]b")
    assert (await gateway.chat()).json()["choices"][0]["message"]["reasoning"] == "a"
    (request,) = gateway.relay.requests
    assert request.shown_tokens == {257, 258}
    assert not request.reasoning.begun


def test_what_a_large_body_is_prepared_into_may_come_from_another_process():
    tokens = ReasoningTokens(open=1, close=2, begun=True, space=(3,))
    format = AnswerFormat(None, ReasoningFormat("Think", True, True, tokens))
    assert pickle.loads(pickle.dumps(format)) == format
    assert pickle.loads(pickle.dumps(ReasoningSupport("Think", 1, 2, (3,)))) == ReasoningSupport("Think", 1, 2, (3,))
    request = GenerationRequest("r", (1,), SamplingParams(max_tokens=1, seed=0), 1.0, reasoning=tokens)
    assert pickle.loads(pickle.dumps(request)) == request
