"""Logprobs of prompts as vLLM and OpenAI spell them. Token t of every prompt has the logprob -t."""

import json
from array import array
from typing import Any

import pytest

from legato_gateway.request import Delta, GenerationRequest, PromptScores, TokenText
from legato_protocol.wire.packed_logprobs import PackedLogprobs
from legato_protocol.wire.stream import TokenLogprobs, TopLogprob

LIKELIEST = (ord("e"), ord("t"), ord("a"))


def scores(request: GenerationRequest) -> PromptScores:
    most = request.params.prompt_logprobs
    assert most is not None
    found, prompt = PromptScores(request.prompt, most), request.prompt
    logprobs = [number for token in prompt[1:] for number in (-float(token), *(-0.5, -1.5, -2.5)[:most])]
    ids = [id for _ in prompt[1:] for id in LIKELIEST[:most]]
    numbers = (("f", logprobs), ("i", ids), ("i", prompt[1:]))
    assert not found.take(1, PackedLogprobs(most, *(array(kind, values).tobytes() for kind, values in numbers)))
    return found


def script(request: GenerationRequest) -> list[Delta]:
    """An answer of one letter and the token that ends it."""
    told = scores(request) if request.params.prompt_logprobs is not None else None
    letter = TokenText(ord("!"), "!", b"!", TokenLogprobs(-0.25, (TopLogprob(ord("!"), -0.25),)), 0)
    end = TokenText(256, "", b"", TokenLogprobs(-0.125, (TopLogprob(256, -0.125),)), 1)
    tokens = (letter, end) if request.explains_end else (letter,)
    shown = tokens if request.params.logprobs is not None else ()
    return [Delta(choice, "!", shown, "stop", scores=told) for choice in range(request.choices)]


@pytest.fixture
def asked(gateway: Any) -> Any:
    gateway.relay.script = script

    async def ask(**fields: Any) -> Any:
        answer = await gateway.complete(**{"prompt": "hé"} | fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


def shown(token: str, logprob: float | None = None, rank: int | None = None) -> dict[str, Any]:
    id = ord(token)
    entry = {"logprob": logprob or -float(id), "rank": rank or id, "decoded_token": token}
    return {str(id): entry}


@pytest.mark.parametrize("alternatives", [0, 2])
async def test_completions_list_them_in_each_choice(asked, gateway, alternatives):
    answer = await asked(prompt=["hex", "A"], n=2, prompt_logprobs=alternatives)
    assert [request.params.prompt_logprobs for request in gateway.relay.requests] == [alternatives] * 2
    top = shown("e", -0.5, 1) | shown("t", -1.5, 2) if alternatives else {}
    expected = [None, {**top, **shown("e")}, {**shown("x"), **top}]
    assert [choice["prompt_logprobs"] for choice in answer["choices"]] == [expected, expected, [None], [None]]
    assert all(choice["logprobs"] is None for choice in answer["choices"])


REPEATED: list[tuple[dict[str, Any], str | None]] = [
    ({"n": 64, "prompt_logprobs": 20}, "prompt_logprobs"),
    ({"n": 64, "echo": True, "logprobs": 20}, "echo"),
    ({"prompt": ["x" * 900] * 64, "prompt_logprobs": 20}, "prompt_logprobs"),
    ({"n": 5, "prompt_logprobs": 20}, None),
    ({"n": 64, "prompt_logprobs": 0}, None),
]


async def test_answers_that_would_repeat_too_much_are_refused(gateway):
    """Each choice of a completion repeats those of its prompt."""
    for fields, param in REPEATED:
        answer = await gateway.complete(**{"prompt": "x" * 900, "max_tokens": 1} | fields)
        assert answer.status_code == (400 if param else 200)
        if param:
            assert answer.json()["error"]["param"] == param
            assert str(1 << 19) in answer.json()["error"]["message"]


async def test_chats_list_them_once(gateway):
    gateway.relay.script = script
    answer = (await gateway.chat(prompt_logprobs=0, n=2)).json()
    assert answer["prompt_logprobs"] == [None, *map(shown, "user: hi\n"[1:])]
    assert all("prompt_logprobs" not in choice for choice in answer["choices"])
    assert "prompt_logprobs" not in (await gateway.chat()).json()


async def test_who_does_not_ask_gets_none(asked, gateway):
    for fields in ({}, {"echo": True}, {"logprobs": 2}):
        answer = await asked(**fields)
        assert "prompt_logprobs" not in answer["choices"][0]
    assert all(request.params.prompt_logprobs is None for request in gateway.relay.requests)


async def test_echo_with_logprobs_are_those_of_prompt_and_answer(asked, gateway):
    """`é` is two tokens, of which each is a part of a character. The token that ends the answer counts: who cuts the
    answer off, as lm-evaluation-harness does, cuts what it is, whatever was said."""
    choice = (await asked(echo=True, logprobs=2))["choices"][0]
    assert choice["text"] == "hé!"
    found = choice["logprobs"]
    assert found["tokens"] == ["h", "\ufffd", "\ufffd", "!", ""]
    assert found["token_logprobs"] == [None, -195.0, -169.0, -0.25, -0.125]
    assert found["text_offset"] == [0, 1, 1, 2, 3]
    assert found["top_logprobs"][:2] == [None, {"e": -0.5, "t": -1.5, "\ufffd": -195.0}]
    assert gateway.relay.requests[0].params.prompt_logprobs == 2
    assert "prompt_logprobs" not in choice


async def test_a_prompt_alone_is_echoed_without_what_was_made_for_it(asked, gateway):
    answer = await asked(prompt="hi", echo=True, logprobs=0, max_tokens=0)
    assert gateway.relay.requests[0].params.max_tokens == 1
    (choice,) = answer["choices"]
    assert (choice["text"], choice["logprobs"]["tokens"], choice["finish_reason"]) == ("hi", ["h", "i"], "length")
    assert answer["usage"]["completion_tokens"] == 0
    assert (await asked(prompt="hi", echo=True, max_tokens=0))["choices"][0]["text"] == "hi"


@pytest.mark.parametrize("most", [0, 5])
async def test_streams_begin_with_those_of_the_prompt(gateway, most):
    gateway.relay.script = script
    fields = {"prompt": "hi", "echo": True, "logprobs": 0, "stream": True, "max_tokens": most}
    body = (await gateway.complete(**fields, stream_options={"include_usage": True})).text
    chunks = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert (choices[0]["text"], choices[0]["logprobs"]["token_logprobs"]) == ("hi", [None, -105.0])
    tokens = [token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["tokens"]]
    ends = "".join(choice["text"] for choice in choices), tokens, choices[-1]["finish_reason"]
    assert ends == (("hi!", ["h", "i", "!", ""], "stop") if most else ("hi", ["h", "i"], "length"))
    assert chunks[-1]["usage"]["completion_tokens"] == (1 if most else 0)


async def test_a_token_before_a_text_is_not_in_it(asked, gateway, monkeypatch):
    monkeypatch.setattr(gateway.tokens, "encode", lambda text, *_, salt: [60, 62, *text.encode()])
    choice = (await asked(prompt="hi", echo=True, logprobs=0, max_tokens=0))["choices"][0]
    assert choice["logprobs"]["text_offset"] == [0, 0, 0, 1]


async def test_of_tokens_with_one_text_the_likeliest_is_told(asked, monkeypatch):
    """Else an evaluation would take a token for the likeliest that is not."""
    monkeypatch.setitem(globals(), "LIKELIEST", (200, 201, 202))
    choice = (await asked(prompt=[65, 210], echo=True, logprobs=1, max_tokens=0))["choices"][0]
    assert choice["logprobs"]["token_logprobs"][1] == -210.0
    assert choice["logprobs"]["top_logprobs"][1] == {"\ufffd": -0.5}
