"""Messages as Anthropic's official client sees them."""

import json
from typing import Any

import anthropic
import pytest
from scripted_gateway import keyed

from legato_gateway.clients.identify import Clients
from legato_gateway.errors import Overloaded, QuotaExceeded, WorkerFailed
from legato_gateway.request import Delta

HI: Any = [{"role": "user", "content": "hi"}]
ASKED: Any = {"model": "tiny", "max_tokens": 20, "messages": HI}


async def test_an_answer_is_what_the_official_client_expects(gateway, client):
    answer = await client.messages.create(**ASKED)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "tiny")
    assert [(block.type, block.text) for block in answer.content] == [("text", "Paris é!")]
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert answer.id.startswith("msg_")
    assert answer._request_id == answer.id
    assert (answer.usage.input_tokens, answer.usage.cache_read_input_tokens) == (len("user: hi\n") - 4, 4)
    assert answer.usage.output_tokens == 3


async def test_a_stream_tells_the_same(gateway, client):
    async with client.messages.stream(**ASKED) as stream:
        kinds = [event.type async for event in stream]
        streamed = await stream.get_final_message()
    whole = await client.messages.create(**ASKED)
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert [block.model_dump() for block in streamed.content] == [block.model_dump() for block in whole.content]
    assert (streamed.stop_reason, streamed.usage) == (whole.stop_reason, whole.usage)


async def test_events_are_named_and_have_no_end_of_openai(gateway):
    response = await gateway.http.post("/v1/messages", json={**ASKED, "stream": True})
    events = [part.split("\n") for part in response.text.strip().split("\n\n")]
    assert all(name == f"event: {json.loads(data[6:])['type']}" for name, data in events)
    assert "[DONE]" not in response.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("last", "max_tokens", "reason", "sequence"),
    [
        (Delta(0, "", (), "stop", "END"), 20, "stop_sequence", "END"),
        (Delta(0, "", (), "stop"), 20, "end_turn", None),
        (Delta(0, "", (), "length"), 20, "max_tokens", None),
        (Delta(0, "", (), "length"), 5000, "model_context_window_exceeded", None),
    ],
)
async def test_why_an_answer_ended(gateway, client, stream, last, max_tokens, reason, sequence):
    gateway.script(Delta(0, "so"), last)
    asked = {**ASKED, "max_tokens": max_tokens}
    if stream:
        async with client.messages.stream(**asked) as events:
            answer = await events.get_final_message()
    else:
        answer = await client.messages.create(**asked)
    assert (answer.content[0].text, answer.stop_reason, answer.stop_sequence) == ("so", reason, sequence)


async def test_an_answer_without_text_has_no_blocks(gateway, client):
    gateway.script(Delta(0, "", (), "stop"))
    assert (await client.messages.create(**ASKED)).content == []


async def test_tokens_are_counted_without_an_answer(gateway, client):
    found = await client.messages.count_tokens(model="tiny", messages=HI, system="kind")
    assert found.input_tokens == len("system: kind\nuser: hi\n")
    long = await client.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": "x" * 1500}])
    assert long.input_tokens > 1000  # beyond the context: that is what clients count for
    assert gateway.relay.requests == []


async def test_the_system_prompt_is_a_message(gateway, client):
    parts: Any = [
        {"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "kind"},
    ]
    await client.messages.create(**ASKED, system=parts, metadata={"user_id": "u"})
    assert gateway.tokens.messages == [{"role": "system", "content": "be\nkind"}, {"role": "user", "content": "hi"}]
    assert gateway.relay.requests[0].operation == "chat"


async def test_turns_of_one_role_are_one_turn(gateway, client):
    turns: Any = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
        {"role": "system", "content": "d"},
        {"role": "user", "content": "e"},
    ]
    await client.messages.create(**{**ASKED, "messages": turns})
    shown = [(message["role"], message["content"]) for message in gateway.tokens.messages]
    assert shown == [("user", "a\nb"), ("assistant", "c"), ("system", "d"), ("user", "e")]


KINDS = [
    (QuotaExceeded("much", reason="quota"), "rate_limit_error", anthropic.RateLimitError),
    (Overloaded("full", reason="queue_full"), "overloaded_error", anthropic.InternalServerError),
    (WorkerFailed("gone", part="decode"), "api_error", anthropic.InternalServerError),
]


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_stream_that_fails_ends_with_an_error_event(gateway, client):
    gateway.script(Delta(0, "so"), WorkerFailed("gone", part="decode"))
    said: list[str] = []

    async def read() -> None:
        async with client.messages.stream(**ASKED) as stream:
            async for text in stream.text_stream:
                said.append(text)

    with pytest.raises(anthropic.APIStatusError, match="gone") as caught:
        await read()
    assert said == ["so"]
    assert caught.value.body == {"type": "error", "error": {"type": "api_error", "message": "gone (decode)"}}


async def test_errors_are_those_of_the_official_client(gateway, client):
    for error, kind, raised in KINDS:
        gateway.script(error)
        with pytest.raises(raised) as caught:
            await client.messages.create(**ASKED)
        assert caught.value.body["error"]["type"] == kind
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.create(**{**ASKED, "model": "claude"})


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/v1/messages", 400, "invalid_request_error"),
        ("/v1/messages/count_tokens", 400, "invalid_request_error"),
        ("/v1/messages/batches", 404, "not_found_error"),
    ],
)
async def test_errors_of_all_its_paths_have_that_shape(gateway, path, status, kind):
    response = await gateway.http.post(path, json={})
    assert response.status_code == status
    assert (response.json()["type"], response.json()["error"]["type"]) == ("error", kind)


async def test_others_keep_openais(gateway):
    response = await gateway.http.post("/v1/chat/completions", json={})
    assert set(response.json()) == {"error"}
    assert response.json()["error"]["param"] == "messages"


async def test_a_prompt_too_long_is_told_so_that_clients_shorten_it(gateway, client):
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: .* 1000 tokens"):
        await client.messages.create(**{**ASKED, "messages": [{"role": "user", "content": "x" * 1500}]})


def user(*content: Any) -> Any:
    return {"messages": [{"role": "user", "content": list(content)}]}


def called(**use: Any) -> Any:
    block = {"type": "tool_use", "id": "a", "name": "f", "input": {}, **use}
    return {"messages": [*HI, {"role": "assistant", "content": [block]}, *HI]}


TOOL = {"name": "f", "input_schema": {"type": "object"}}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\].role"),
    ({"messages": [*HI, {"role": "assistant", "content": "so"}]}, "last message of the role assistant"),
    (user({"type": "image", "source": {"type": "url", "url": "x"}}), r"messages\[0\].content\[0\].*'image'"),
    (user({"type": "document", "source": {}}), r"messages\[0\].content\[0\].*'document'"),
    (user({"type": "text", "text": "a", "colour": 1}), r"messages\[0\].content\[0\].*colour"),
    (user({"type": "text", "text": "a", "citations": [{}]}), r"messages\[0\].content\[0\].citations"),
    (user({"type": "tool_use", "id": "a", "name": "f", "input": {}}), "'tool_use'"),
    (
        user({"type": "text", "text": "a"}, {"type": "tool_result", "tool_use_id": "t", "content": "x"}),
        r"messages\[0\].content\[1\].tool_use_id",
    ),
    (called(id=""), r"messages\[1\].content\[0\].id"),
    (called(name=""), r"messages\[1\].content\[0\].name"),
    ({"system": [{"type": "image"}]}, r"system\[0\]"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, r"tools\[0\].*web_search_20250305"),
    ({"tools": [{**TOOL, "name": "a b"}]}, r"tools\[0\].name"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, r"tools\[0\].defer_loading"),
    ({"tools": [{**TOOL, "input_examples": [{}]}]}, r"tools\[0\].input_examples"),
    ({"tools": [{**TOOL, "strict": True, "input_schema": {"not": {}}}]}, r"tools\[0\].input_schema"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"output_config": {"effort": "high"}}, "output_config.effort 'high' is not supported: this model does not reason"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "output_config.format.schema"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens is not supported: this model"),
    ({"thinking": {"type": "adaptive", "budget_tokens": 1024}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    ({"container": "c"}, "container"),
    ({"inference_geo": "eu"}, "inference_geo"),
    ({"mcp_servers": []}, "mcp_servers"),
    ({"stop_sequences": [""]}, "stop_sequences"),
]


async def test_what_cannot_be_obeyed_is_refused_by_name(gateway, client):
    for fields, told in WRONG:
        with pytest.raises(anthropic.BadRequestError, match=told):
            await client.messages.create(**{**ASKED, "extra_body": fields})
    assert gateway.relay.requests == []


@pytest.mark.parametrize(("version", "status"), [("2023-06-01", 200), ("2026-10-21", 200), ("2020-01-01", 400)])
async def test_versions_that_are_not_known_are_refused(gateway, version, status):
    response = await gateway.http.post("/v1/messages", json=ASKED, headers={"anthropic-version": version})
    assert response.status_code == status


# ── API keys ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_official_client_shows_its_key(tmp_path, make, connect):
    gateway = make(clients=Clients(keyed(tmp_path, a={})))
    await connect(gateway, api_key="key-a").messages.create(**ASKED)
    await connect(gateway, api_key=None, auth_token="key-a").messages.count_tokens(
        model="tiny", messages=ASKED["messages"]
    )
    assert [request.tenant for request in gateway.relay.requests] == ["a"]
    for path in ("messages", "messages/count_tokens"):
        answer = await gateway.http.post(f"/v1/{path}", json=ASKED)
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
    with pytest.raises(anthropic.AuthenticationError):
        await connect(gateway, api_key="key-b").messages.create(**ASKED)


@pytest.mark.parametrize(("key", "status"), [("key-a", 200), ("key-b", 401), ("", 401)])
async def test_older_clients_show_it_in_a_header_of_its_own(tmp_path, make, key, status):
    gateway = make(clients=Clients(keyed(tmp_path, a={})))
    answer = await gateway.http.post("/v1/messages", json=ASKED, headers={"x-api-key": key})
    assert answer.status_code == status
