"""Prompts and chats as tokens and back, in vLLM's shapes."""

import threading
from typing import Any

import pytest

from legato_gateway.openai import tokenization

HI: Any = [{"role": "user", "content": "hi"}]


async def test_a_prompt_is_told_as_tokens_and_back(gateway):
    answer = (await gateway.http.post("/tokenize", json={"model": "tiny", "prompt": "hé"})).json()
    assert answer == {"count": 3, "max_model_len": 1000, "tokens": [104, 195, 169], "token_strs": None}
    back = await gateway.http.post("/detokenize", json={"tokens": answer["tokens"]})
    assert back.json() == {"prompt": "hé"}
    assert gateway.relay.requests == []


async def test_a_chat_is_told_as_what_it_is_for_the_model(gateway):
    body = {"messages": HI, "return_token_strs": True}
    answer = (await gateway.http.post("/tokenize", json=body)).json()
    await gateway.chat()
    assert tuple(answer["tokens"]) == gateway.relay.requests[0].prompt
    assert answer["token_strs"] == [f"<{id}>" for id in answer["tokens"]]


async def test_tools_are_part_of_a_chat(make):
    gateway = make(template="{{ tools }} <tool_call>")
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert (await gateway.http.post("/tokenize", json={"messages": HI, "tools": tools})).status_code == 200
    assert gateway.tokens.given["tools"] == tools


async def test_nothing_has_no_tokens(gateway):
    assert (await gateway.http.post("/tokenize", json={"prompt": ""})).json()["count"] == 0
    assert (await gateway.http.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


async def test_answers_are_encoded_off_the_event_loop(gateway, monkeypatch):
    """They may be of a million tokens, and streams wait meanwhile."""
    encode, threads = tokenization.encode, []

    def observed(value: Any) -> bytes:
        threads.append(threading.current_thread())
        return encode(value)

    monkeypatch.setattr(tokenization, "encode", observed)
    for path, body in (("tokenize", {"prompt": "a"}), ("tokenize", {"messages": HI}), ("detokenize", {"tokens": [97]})):
        answer = await gateway.http.post(f"/{path}", json=body)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert len(threads) == 3
    assert threading.current_thread() not in threads


async def test_tokens_are_spelled_out_up_to_a_bound(gateway, monkeypatch):
    monkeypatch.setattr(tokenization, "MAX_TOKEN_STRS", 8)
    for body, status in (({"prompt": "a" * 8}, 200), ({"prompt": "a" * 9}, 400), ({"messages": HI}, 400)):
        answer = await gateway.http.post("/tokenize", json={"return_token_strs": True, **body})
        assert answer.status_code == status
        if status == 400:
            assert answer.json()["error"]["param"] == "return_token_strs"
            assert "at most 8" in answer.json()["error"]["message"]
        assert (await gateway.http.post("/tokenize", json=body)).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": None}, "prompt"),
        ("tokenize", {"prompt": "a", "messages": HI}, "prompt"),
        ("tokenize", {"prompt": "a", "tools": [{}]}, "tools"),
        ("tokenize", {"prompt": "a", "colour": 1}, "colour"),
        ("tokenize", {"prompt": "a" * 3000}, "prompt"),
        ("tokenize", {"messages": []}, "messages"),
        ("tokenize", {"messages": HI, "chat_template": "{{ 1 }}"}, "chat_template"),
        ("tokenize", {"messages": HI, "media_io_kwargs": {"a": {}}}, "media_io_kwargs"),
        ("detokenize", {}, "tokens"),
        ("detokenize", {"tokens": [0] * 1001}, "tokens"),
        ("detokenize", {"tokens": [257]}, "tokens"),
        ("detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("detokenize", {"tokens": "a"}, "tokens"),
    ],
)
async def test_what_cannot_be_told_is_refused(gateway, path, body, param):
    answer = await gateway.http.post(f"/{path}", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_a_model_that_is_not_served_has_no_tokens(gateway):
    for path, body in (("tokenize", {"prompt": "a"}), ("detokenize", {"tokens": [1]})):
        assert (await gateway.http.post(f"/{path}", json={"model": "other", **body})).status_code == 404
