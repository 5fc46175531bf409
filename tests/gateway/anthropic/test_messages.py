"""Messages as Anthropic's official client sees them."""

import json
import random
from itertools import product
from typing import Any

import anthropic
import httpx2
import pytest
from scripted_gateway import keyed

from legato_gateway.anthropic.writer import BlockEvents, gathered
from legato_gateway.clients.identify import Clients
from legato_gateway.errors import Overloaded, QuotaExceeded, WorkerFailed
from legato_gateway.openai.chat.answer import AnswerFormat
from legato_gateway.openai.chat.tool_definitions import CallFormat
from legato_gateway.request import Delta

HI: Any = [{"role": "user", "content": "hi"}]
ASKED: Any = {"model": "tiny", "max_tokens": 20, "messages": HI}
STREAMED = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
async def connect() -> Any:
    made: list[anthropic.AsyncAnthropic] = []

    def client(gateway: Any, **options: Any) -> anthropic.AsyncAnthropic:
        transport = httpx2.ASGITransport(gateway.app, raise_app_exceptions=False)
        http = httpx2.AsyncClient(transport=transport, base_url="http://gateway")
        given = {"api_key": "-", "max_retries": 0, **options}
        made.append(anthropic.AsyncAnthropic(base_url="http://gateway", http_client=http, **given))
        return made[-1]

    yield client
    for each in made:
        await each.close()


@pytest.fixture
def client(gateway: Any, connect: Any) -> anthropic.AsyncAnthropic:
    return connect(gateway)


async def final(client: Any, stream: bool, **fields: Any) -> Any:
    """The message that the official client gets, or puts together from a stream."""
    if not stream:
        return await client.messages.create(**ASKED | fields)
    async with client.messages.stream(**ASKED | fields) as events:
        return await events.get_final_message()


async def test_events_are_named_and_have_no_end_of_openai(gateway):
    response = await gateway.http.post("/v1/messages", json={**ASKED, "stream": True})
    events = [part.split("\n") for part in response.text.strip().split("\n\n")]
    assert all(name == f"event: {json.loads(data[6:])['type']}" for name, data in events)
    kinds = [name.removeprefix("event: ") for name, _ in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


ENDS = [  # the last part of an answer, the bound that was asked for, the reason, and the sequence
    (Delta(0, "", (), "stop", "END"), 20, "stop_sequence", "END"),
    (Delta(0, "", (), "stop"), 20, "end_turn", None),
    (Delta(0, "", (), "length"), 20, "max_tokens", None),
    (Delta(0, "", (), "length"), 5000, "model_context_window_exceeded", None),
]


@STREAMED
async def test_why_an_answer_ended(gateway, client, stream):
    for last, most, reason, sequence in ENDS:
        gateway.script(Delta(0, "so"), last)
        answer = await final(client, stream, max_tokens=most)
        assert (answer.content[0].text, answer.stop_reason, answer.stop_sequence) == ("so", reason, sequence)


async def test_an_answer_that_the_service_cuts_off_did_not_fill_the_context(make):
    gateway = make(max_output=8)
    gateway.script(Delta(0, "so", (), "length"))
    answer = await gateway.http.post("/v1/messages", json={**ASKED, "max_tokens": 5000})
    assert answer.json()["stop_reason"] == "max_tokens"


async def test_tokens_are_counted_without_an_answer(gateway, client):
    found = await client.messages.count_tokens(model="tiny", messages=HI, system="kind")
    assert found.input_tokens == len("system: kind\nuser: hi\n")
    beyond = [{"role": "user", "content": "x" * 1500}]
    assert (await client.messages.count_tokens(model="tiny", messages=beyond)).input_tokens > 1000  # what it is for
    assert gateway.relay.requests == []


async def test_the_system_prompt_is_a_message(gateway, client):
    cached: Any = {"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}
    await client.messages.create(**ASKED, system=[cached, {"type": "text", "text": "kind"}], metadata={"user_id": "u"})
    assert gateway.tokens.messages == [{"role": "system", "content": "be\nkind"}, *HI]
    assert gateway.relay.requests[0].operation == "chat"


LINE = "x-anthropic-billing-header: cc_version=2.1.177.{0:03x}; cc_entrypoint=cli; cch={0:05x};"
PLACES: dict[str, Any] = {
    "a block of its own": {"system": [{"type": "text", "text": LINE}, {"type": "text", "text": "kind"}]},
    "the first line of a block": {"system": [{"type": "text", "text": LINE + "\r\nkind"}]},
    "the first line of a text": {"system": LINE + "\nkind"},
    "a later block": {"system": [{"type": "text", "text": "kind"}, {"type": "text", "text": LINE}]},
    "nothing else": {"system": LINE},
    "a message": {"messages": [*HI, {"role": "system", "content": LINE}, *HI]},
    "a block of a message": {
        "messages": [{"role": "system", "content": [{"type": "text", "text": LINE + "\nkind"}]}, *HI]
    },
}


@pytest.mark.parametrize("place", PLACES)
async def test_what_claude_code_accounts_for_in_the_system_prompt_is_not_shown_to_the_model(gateway, client, place):
    """It differs in each request, so nothing after it would be found in the prefix cache."""
    shown = []
    for number in (1, 0xABC):
        await client.messages.create(**ASKED | json.loads(json.dumps(PLACES[place]).replace(LINE, LINE.format(number))))
        shown.append(gateway.tokens.messages)
    assert shown[0] == shown[1]
    assert ("kind" in json.dumps(PLACES[place])) == ("kind" in json.dumps(shown[0]))


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


async def test_errors_are_those_of_the_official_client(gateway, client):
    for error, kind, raised in KINDS:
        gateway.script(error)
        with pytest.raises(raised) as caught:
            await client.messages.create(**ASKED)
        assert caught.value.body["error"]["type"] == kind


async def test_errors_of_all_its_paths_have_that_shape(gateway):
    wrong, missing = "invalid_request_error", "not_found_error"
    for path, status, kind in (("", 400, wrong), ("/count_tokens", 400, wrong), ("/batches", 404, missing)):
        response = await gateway.http.post(f"/v1/messages{path}", json={})
        assert (response.status_code, response.json()["type"], response.json()["error"]["type"]) == (
            status,
            "error",
            kind,
        )


def user(*content: Any) -> Any:
    return {"messages": [{"role": "user", "content": list(content)}]}


def called(**use: Any) -> Any:
    block = {"type": "tool_use", "id": "a", "name": "f", "input": {}, **use}
    return {"messages": [*HI, {"role": "assistant", "content": [block]}, *HI]}


TOOL = {"name": "f", "input_schema": {"type": "object"}}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    (
        {"messages": [{"role": "user", "content": "x" * 1500}]},
        r"prompt is too long: .* 1000 tokens",
    ),  # clients shorten it
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
    ({"tools": [{**TOOL, "name": "a b"}]}, r"tools\[0\].name"),
    ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, r"tools\[0\].allowed_callers"),
    (user({"type": "tool_reference", "tool_name": "f"}), "'tool_reference'"),
    ({"tools": [{**TOOL, "strict": True, "input_schema": {"not": {}}}]}, r"tools\[0\].input_schema"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "output_config.format.schema"),
    ({"thinking": {"type": "adaptive", "budget_tokens": 1024}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    ({"container": "c"}, "container"),
    ({"inference_geo": "eu"}, "inference_geo"),
    ({"compaction": {"type": "summarize"}}, "compaction"),
    ({"colour": []}, "colour"),
    ({"stop_sequences": [""]}, "stop_sequences"),
]


async def test_what_cannot_be_obeyed_is_refused_by_name(gateway, client):
    for fields, told in WRONG:
        with pytest.raises(anthropic.BadRequestError, match=told):
            await client.messages.create(**{**ASKED, "extra_body": fields})
    assert gateway.relay.requests == []


async def test_versions_that_are_not_known_are_refused(gateway):
    for version, status in (("2023-06-01", 200), ("2026-10-21", 200), ("2020-01-01", 400)):
        answer = await gateway.http.post("/v1/messages", json=ASKED, headers={"anthropic-version": version})
        assert answer.status_code == status


async def test_the_official_client_shows_its_key(tmp_path, make, connect):
    gateway = make(clients=Clients(keyed(tmp_path, a={})))
    await connect(gateway, api_key="key-a").messages.create(**ASKED)
    await connect(gateway, api_key=None, auth_token="key-a").messages.count_tokens(model="tiny", messages=HI)
    assert [request.tenant for request in gateway.relay.requests] == ["a"]
    for key, path in product(({}, {"x-api-key": "key-b"}, {"x-api-key": ""}), ("messages", "messages/count_tokens")):
        answer = await gateway.http.post(f"/v1/{path}", json=ASKED, headers=key)
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Pa\\"ris"}}\n</tool_call>'
TWO = f"Let me see.\n{CALL}\n{CALL}"
INPUT = {"city": 'Pa"ris'}
TOOLS: Any = {"tools": [{"name": "weather", "description": "Reports it.", "input_schema": {"type": "object"}}]}


@pytest.fixture
def calling(make: Any) -> Any:
    return make(template="{{ tools }} <tool_call>")  # Hermes'


@pytest.mark.parametrize("text", [TWO, CALL, "no call, <tool_call> {", f"{CALL}\nand text behind", "é" * 9])
def test_random_cuts_of_text_give_the_same_blocks(text):
    def blocks(pieces: list[str]) -> list[Any]:
        events = BlockEvents(AnswerFormat(CallFormat("Hermes", {"weather": None})))
        told = [event for piece in pieces[:-1] for event in events.push(piece, None)]
        told += events.push(pieces[-1], "stop")
        starts = [event["index"] for event in told if event["type"] == "content_block_start"]
        stops = [event["index"] for event in told if event["type"] == "content_block_stop"]
        assert starts == stops == list(range(len(starts)))
        return [{key: value for key, value in block.items() if key != "id"} for block in gathered(told)]

    source, expected = random.Random(text), blocks([text])
    for _ in range(100):
        cuts = sorted(source.choices(range(len(text) + 1), k=source.randrange(1, 12)))
        assert blocks([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]) == expected


async def test_results_go_back_to_the_model_in_their_order(calling, connect):
    calling.say(TWO)
    client = connect(calling)
    answer = await client.messages.create(**ASKED | TOOLS)
    first, second = (block.id for block in answer.content[1:])
    failed = {"content": [{"type": "text", "text": "no"}], "is_error": True}
    results: Any = [
        {"type": "tool_result", "tool_use_id": first, "content": "rain"},
        {"type": "tool_result", "tool_use_id": second, **failed},
        {"type": "text", "text": "so?"},
    ]
    turns = [*HI, {"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    await client.messages.create(**ASKED | TOOLS | {"messages": turns})
    assert calling.tokens.given["tools"][0]["function"]["description"] == "Reports it."
    _, said, rain, error, asked = calling.tokens.messages
    assert [call["function"] for call in said["tool_calls"]] == [{"name": "weather", "arguments": INPUT}] * 2
    assert (rain["role"], rain["name"], rain["content"]) == ("tool", "weather", "rain")
    assert (error["tool_call_id"], error["content"]) == (second, "Error: no")
    assert asked == {"role": "user", "content": "so?"}


@STREAMED
async def test_a_call_that_is_cut_off_has_what_is_complete_of_it(calling, connect, stream):
    calling.say(CALL[: CALL.index("ris")].replace('{"city": ', '{"n": 1, "city": '), "length", 8)
    answer = await final(connect(calling), stream, **TOOLS)
    assert (answer.stop_reason, answer.content[0].input) == ("max_tokens", {"n": 1})


async def test_arguments_that_are_not_json_are_marked_as_such(calling, connect):
    calling.say(CALL.replace('"Pa\\"ris"', "Paris"))
    (block,) = (await final(connect(calling), False, **TOOLS)).content
    assert block.input == {"INVALID_JSON": '{"city": Paris}'}


@pytest.fixture
def reasoning(make: Any) -> Any:
    made = make(template="{{ enable_thinking }} <think></think>")
    made.script(Delta(0, "<think>\nso, Paris</thi"), Delta(0, "nk>\n\nParis.", (), "stop"))
    return made


@pytest.mark.parametrize(
    ("thinking", "switched", "shown"),
    [
        (None, None, True),
        ({"type": "disabled"}, False, True),
        ({"type": "adaptive"}, True, True),
        ({"type": "adaptive", "display": "omitted"}, True, False),
        ({"type": "enabled"}, True, True),
    ],
)
async def test_thinking_is_switched_in_the_chat_template(reasoning, connect, thinking, switched, shown):
    answer = await connect(reasoning).messages.create(**ASKED, extra_body={"thinking": thinking} if thinking else {})
    assert reasoning.tokens.given.get("enable_thinking") is switched
    assert [block.type for block in answer.content] == (["thinking", "text"] if shown else ["text"])


async def test_earlier_thinking_goes_back_to_the_template(reasoning, connect):
    client = connect(reasoning)
    answer = await client.messages.create(**ASKED)
    turns = [*HI, {"role": "assistant", "content": answer.content}, *HI]
    await client.messages.create(**{**ASKED, "messages": turns}, extra_body={"output_config": {"effort": "low"}})
    said = reasoning.tokens.messages[1]
    assert (said["content"], said["reasoning_content"]) == ("Paris.", "so, Paris")
    assert reasoning.tokens.given["enable_thinking"] is True
