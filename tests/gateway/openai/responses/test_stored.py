"""Responses that are stored: found again, continued, listed, deleted, and never by another tenant."""

import json
import threading
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseItemList
from scripted_gateway import keyed
from tests.support.response_events import ask, events

from legato_gateway.clients.identify import Clients
from legato_gateway.errors import WorkerFailed
from legato_gateway.request import Delta
from legato_gateway.serving.bodies import preparation

WEATHER: Any = {"type": "function", "name": "get_weather", "parameters": None, "strict": None}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'


async def test_a_response_is_found_again_until_it_is_deleted(storing):
    made = await storing.client.responses.create(model="tiny", input="hi", metadata={"a": "b"})
    assert made.to_dict()["store"] is True
    found = await storing.client.responses.retrieve(made.id)
    assert found.to_dict() == made.to_dict()
    with pytest.raises(openai.BadRequestError, match="cannot be cancelled"):
        await storing.client.responses.cancel(made.id)
    await storing.client.responses.delete(made.id)
    for name in ("retrieve", "delete", "cancel"):
        with pytest.raises(openai.NotFoundError) as missing:
            await getattr(storing.client.responses, name)(made.id)
        assert missing.value.body["param"] == "response_id"


async def test_what_ended_is_stored_as_it_ended_and_what_failed_is_not(storing):
    for steps, status in (
        ([Delta(0, "Par", (), "stop")], "completed"),
        ([Delta(0, "Par", (), "length")], "incomplete"),
    ):
        storing.script(*steps)
        final = (await events(storing))[-1]["response"]
        assert (await storing.http.get(f"/v1/responses/{final['id']}")).json() == final
        assert final["status"] == status
    storing.script(Delta(0, "Par"), WorkerFailed("gone"))
    failed = (await events(storing))[-1]["response"]
    assert (await storing.http.get(f"/v1/responses/{failed['id']}")).status_code == 404


async def test_it_and_its_items_are_there_for_their_time(storing, clock):
    id = (await ask(storing)).json()["id"]
    path = f"/v1/responses/{id}"
    clock.now = 3599.0
    assert (await storing.http.get(path)).status_code == (await items_of(storing, id)).status_code == 200
    clock.now = 3600.0
    answer = await storing.http.get(path)
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "response_id")
    assert (await items_of(storing, id)).json() == answer.json()
    assert (await ask(storing, previous_response_id=id)).status_code == 400


async def test_who_does_not_want_it_stored_has_it_so(storing):
    made = (await ask(storing, store=False)).json()
    assert made["store"] is False
    assert (await storing.http.get(f"/v1/responses/{made['id']}")).status_code == 404


async def test_where_nothing_is_stored_nothing_is_found(gateway):
    made = (await ask(gateway, store=True)).json()
    assert made["store"] is False
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        answer = await gateway.http.request(method, f"/v1/responses/{made['id']}{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        assert "stores no responses" in answer.json()["error"]["message"]


async def test_what_is_wrong_is_named(storing):
    for field, value in (("store", "yes"), ("previous_response_id", "resp_1"), ("previous_response_id", 5)):
        answer = await ask(storing, **{field: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    made = (await ask(storing, previous_response_id=None)).json()["id"]
    for name, value in (("stream", "true"), ("include[]", "message.output_text.logprobs"), ("starting_after", "3")):
        answer = await storing.http.get(f"/v1/responses/{made}?{name}={value}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert (await storing.http.get(f"/v1/responses/{made}?stream=false")).status_code == 200


async def test_a_short_request_waits_among_long_ones_where_what_it_goes_on_from_is_long(storing, monkeypatch):
    """Earlier messages are decoded and tokenized with the request."""
    monkeypatch.setattr(preparation, "LONG", 2000)
    said = "\0" * 200  # 1200 bytes of JSON
    lanes: list[str] = []
    storing.tokens.before = lambda _: lanes.append(threading.current_thread().name.rpartition("_")[0])
    half = (await ask(storing, input=said)).json()
    whole = (await ask(storing, input=said, previous_response_id=half["id"])).json()
    await ask(storing, input="c", previous_response_id=half["id"])
    await ask(storing, input="c", previous_response_id=whole["id"])
    assert lanes == ["prepare-short", "prepare-long", "prepare-short", "prepare-long"]


async def test_a_conversation_goes_on(storing):
    """Instructions are of one response only, as at OpenAI."""
    first = (await ask(storing, input="one", instructions="Be brief.")).json()
    second = (await ask(storing, input="two", previous_response_id=first["id"])).json()
    assert second["previous_response_id"] == first["id"]
    await storing.client.responses.delete(first["id"])
    await ask(storing, input=[{"role": "user", "content": "three"}], previous_response_id=second["id"])
    said = [(message["role"], message["content"]) for message in storing.tokens.messages]
    user, answer = zip(("user",) * 3, ("one", "two", "three"), strict=True), ("assistant", "Paris é!")
    assert said == [next(user), answer, next(user), answer, next(user)]


async def test_results_of_stored_calls_may_follow(make, store):
    gateway = make(responses=store, template="{{ tools }}<tool_call>")
    gateway.script(Delta(0, CALL, (), "stop"))
    first = (await ask(gateway, tools=[WEATHER])).json()
    (call,) = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    await ask(gateway, tools=[WEATHER], input=[result], previous_response_id=first["id"])
    _, called, told = gateway.tokens.messages
    assert called["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": {"city": "Rome"}}
    assert (told["role"], told["content"]) == ("tool", "rain")
    store.check_integrity()


async def test_another_tenant_finds_and_continues_nothing(make, store, tmp_path):
    gateway = make(clients=Clients(keyed(tmp_path, a={}, b={})), responses=store)
    mine, others = ({"authorization": f"Bearer key-{name}"} for name in "ab")
    made = (await ask(gateway, mine)).json()["id"]
    for method, path in (("POST", "/cancel"), ("GET", "/input_items"), ("GET", ""), ("DELETE", "")):
        url = f"/v1/responses/{made}{path}"
        statuses = [(await gateway.http.request(method, url, headers=who)).status_code for who in (others, {}, mine)]
        assert statuses == [404, 401, 400 if path == "/cancel" else 200], url
    refused = await ask(gateway, others, previous_response_id=(await ask(gateway, mine)).json()["id"])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")
    assert len(gateway.relay.generations) == 2


async def test_an_escaped_field_is_no_way_around(storing):
    """A response whose id was not looked up is not continued."""
    made = (await ask(storing)).json()["id"]
    body = json.dumps({"input": "hi", "previous_response_id": made}).replace("previous_", "previous\\u005f")
    answer = await storing.http.post("/v1/responses", content=body.encode())
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "previous_response_id")


async def test_long_conversations_have_as_many_items_as_one_request(storing):
    said, thought = {"role": "user", "content": "hi"}, {"type": "reasoning"}
    made = (await ask(storing, input=[said, *[thought] * 2045])).json()["id"]
    last = (await ask(storing, input=[said], previous_response_id=made)).json()["id"]
    for input in ("hi", [said]):
        answer = await ask(storing, input=input, previous_response_id=last)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


async def items_of(gateway: Any, id: str, **params: Any) -> Any:
    return await gateway.http.get(f"/v1/responses/{id}/input_items", params=params)


def said(*texts: object) -> list[dict[str, Any]]:
    return [{"role": "user", "content": str(text)} for text in texts]


async def test_a_conversation_is_listed_from_its_beginning_and_the_client_turns_the_pages(storing):
    """Ids of an answer's items are those that it had, and all stay the same in whatever goes on from it."""
    responses = storing.client.responses
    first = await responses.create(model="tiny", input=said(*range(4)))
    earlier = await responses.input_items.list(first.id, order="asc")
    second = await responses.create(model="tiny", input="4", previous_response_id=first.id)
    await responses.delete(first.id)
    for limit in (1, 2, 5, 6, 100):
        found = [item async for item in responses.input_items.list(second.id, order="asc", limit=limit)]
        assert [part.text for item in found for part in item.content] == ["0", "1", "2", "3", "Paris é!", "4"]
        assert [item.id for item in found[:4]] == [item.id for item in earlier.data]
        (answer,) = (item.to_dict() for item in first.output)
        assert found[4].to_dict() == answer | {
            "content": [{"type": "output_text", "text": "Paris é!", "annotations": []}]
        }
        backwards = [item async for item in responses.input_items.list(second.id, limit=limit)]
        assert backwards == found[::-1], "the latest is first unless one asks"
    assert len({item.id for item in found}) == 6


async def test_a_page_is_a_list_of_openais(storing):
    made = (await ask(storing, input=said(*range(21)))).json()["id"]
    ids = [item["id"] for item in (await items_of(storing, made, limit=100)).json()["data"]]
    ResponseItemList.model_validate((await items_of(storing, made)).json())
    for after, found, more in (
        ({}, ids[:20], True),
        ({"after": ids[19]}, ids[20:], False),
        ({"after": ids[20]}, [], False),
    ):
        page = (await items_of(storing, made, **after)).json()
        assert [item["id"] for item in page.pop("data")] == found
        ends = {"first_id": found[0], "last_id": found[-1]} if found else {"first_id": None, "last_id": None}
        assert page == {"object": "list", "has_more": more, **ends}


async def test_ids_of_clients_are_not_kept(storing):
    """They may come twice, and a page that begins after such a one would come again and again."""
    same = {**said("hi")[0], "id": "msg_mine", "status": "in_progress"}
    made = (await ask(storing, input=[same, same])).json()["id"]
    found = (await items_of(storing, made)).json()["data"]
    assert len({item["id"] for item in found} | {"msg_mine"}) == 3
    assert [item["status"] for item in found] == ["completed"] * 2


async def test_items_of_every_type(make, store):
    template = "{{ tools }}<tool_call>{{ enable_thinking }}<think>"
    gateway = make(responses=store, template=template)
    gateway.script(Delta(0, f"<think>\nHm.\n</think>\n\n{CALL}", (), "stop"))
    first = (await ask(gateway, tools=[WEATHER], input=[{"role": "developer", "content": "Be brief."}])).json()
    thought, call = first["output"]
    parts = [{"type": "output_text", "text": "rain"}, {"type": "input_text", "text": "y"}]
    items: list[dict[str, Any]] = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"},
        {"type": "function_call_output", "call_id": call["call_id"], "output": parts},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}, {"type": "text", "text": "well"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
        {"type": "reasoning", "summary": []},
        *said("And?"),
    ]
    gateway.script(Delta(0, "Rai", (), "length"))
    second = (await ask(gateway, tools=[WEATHER], input=items, previous_response_id=first["id"])).json()
    page = (await items_of(gateway, second["id"], order="asc")).json()
    ResponseItemList.model_validate(page)
    found = page["data"]
    assert " ".join(item["id"].partition("_")[0] for item in found) == "msg rs fc fco fco msg rs rs msg"
    assert found[1:3] == [thought, call]
    told = [{key: value for key, value in item.items() if key not in ("id", "status")} for item in found]
    brief = [{"type": "input_text", "text": "Be brief."}]
    assert told[0] == {"type": "message", "role": "developer", "content": brief}
    assert told[3] == items[0]
    assert told[4] == {**items[1], "output": [{"type": "input_text", "text": text} for text in ("rain", "y")]}
    refusal, text = {"type": "refusal", "refusal": "no"}, {"type": "output_text", "text": "well", "annotations": []}
    assert told[5] == {"type": "message", "role": "assistant", "content": [refusal, text]}
    assert told[6] == items[3]
    assert told[7] == {**items[4], "content": []}
    gateway.script(Delta(0, "n", (), "stop"))
    third = (await ask(gateway, previous_response_id=second["id"])).json()["id"]
    cut_off = (
        await items_of(gateway, third, limit=1, after=(await items_of(gateway, third)).json()["first_id"])
    ).json()
    assert [item["status"] for item in cut_off["data"]] == ["incomplete"]


async def test_items_of_codex_are_listed_in_openais_types(storing):
    call = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "namespace": "crm", "input": "+ a"}
    items = [call, {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}]
    made = await ask(storing, input=[*items, {"type": "agent_message", "author": "/a", "content": "hi"}])
    page = (await items_of(storing, made.json()["id"], order="asc")).json()
    ResponseItemList.model_validate(page)
    *found, last = [{key: value for key, value in item.items() if key not in ("id", "status")} for item in page["data"]]
    assert found == items
    assert last == {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}


QUERIES = {
    "limit": ("0", "101", "-1", "x", "", "1.0", "٣", "9" * 5000),
    "order": ("up", ""),
    "after": ("msg_other", ""),
    "include": ["all"],
    "include[]": ["x"],
    "before": ["msg_1"],
    "starting_after": ["3"],
}


async def test_what_is_wrong_with_a_query_is_named(storing):
    made = (await ask(storing)).json()["id"]
    for name, value in ((name, value) for name, values in QUERIES.items() for value in values):
        answer = await items_of(storing, made, **{name: value})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, name.removesuffix("[]")), error
        assert len(error["message"]) < 400
