"""Prompts and chats as tokens and back, in vLLM's shapes."""

from typing import Any

import pytest

from legato_gateway.openai import tokenization

HI: Any = [{"role": "user", "content": "hi"}]


async def test_a_prompt_becomes_tokens_and_text_again(gateway):
    answer = (await gateway.http.post("/tokenize", json={"model": "tiny", "prompt": "hé"})).json()
    assert answer == {"count": 3, "max_model_len": 1000, "tokens": [104, 195, 169], "token_strs": None}
    for text, tokens in (("hé", answer["tokens"]), ("", [])):
        assert (await gateway.http.post("/detokenize", json={"tokens": tokens})).json() == {"prompt": text}
        assert (await gateway.http.post("/tokenize", json={"prompt": text})).json()["tokens"] == tokens
    assert gateway.relay.requests == []


async def test_a_chat_is_what_the_model_is_given_of_it(make):
    gateway = make(template="{{ tools }} <tool_call>")
    body = {"messages": HI, "tools": [{"type": "function", "function": {"name": "f"}}]}
    answer = (await gateway.http.post("/tokenize", json=body | {"return_token_strs": True})).json()
    assert gateway.tokens.given["tools"] == body["tools"]
    await gateway.chat(**body)
    assert tuple(answer["tokens"]) == gateway.relay.requests[0].prompt
    assert answer["token_strs"] == [f"<{id}>" for id in answer["tokens"]]


async def test_tokens_are_spelled_out_up_to_a_bound(gateway, monkeypatch):
    monkeypatch.setattr(tokenization, "MAX_TOKEN_STRS", 8)
    for body, status in (({"prompt": "a" * 8}, 200), ({"prompt": "a" * 9}, 400), ({"messages": HI}, 400)):
        answer = await gateway.http.post("/tokenize", json={"return_token_strs": True, **body})
        assert answer.status_code == status
        error = answer.json().get("error", {"param": "return_token_strs", "message": "at most 8"})
        assert (error["param"], "at most 8" in error["message"]) == ("return_token_strs", True)
        assert (await gateway.http.post("/tokenize", json=body)).status_code == 200


WRONG = {
    "tokenize": [
        ("prompt", {}),
        ("prompt", {"prompt": None}),
        ("prompt", {"prompt": "a", "messages": HI}),
        ("tools", {"prompt": "a", "tools": [{}]}),
        ("colour", {"prompt": "a", "colour": 1}),
        ("prompt", {"prompt": "a" * 3000}),
        ("messages", {"messages": []}),
        ("chat_template", {"messages": HI, "chat_template": "{{ 1 }}"}),
        ("media_io_kwargs", {"messages": HI, "media_io_kwargs": {"a": {}}}),
        ("model", {"prompt": "a", "model": "other"}),
    ],
    "detokenize": [
        ("tokens", {}),
        ("tokens", {"tokens": [0] * 1001}),
        ("tokens", {"tokens": [257]}),
        ("tokens[0]", {"tokens": [-1]}),
        ("tokens", {"tokens": "a"}),
        ("model", {"tokens": [1], "model": "other"}),
    ],
}


@pytest.mark.parametrize("path", WRONG)
async def test_what_cannot_be_converted_is_refused(gateway, path):
    for param, body in WRONG[path]:
        answer = await gateway.http.post(f"/{path}", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (404 if param == "model" else 400, param), body
