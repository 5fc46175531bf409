"""Responses that are stored: found again, continued, deleted, and never by another tenant."""

import json
import threading
from typing import Any

import openai
import pytest
from scripted_gateway import keyed
from tests.support.response_events import ask, events

from legato_gateway.clients.identify import Clients
from legato_gateway.errors import WorkerFailed
from legato_gateway.request import Delta
from legato_gateway.serving import preparation


async def listed(gateway: Any, path: str, **params: Any) -> Any:
    return await gateway.http.get(f"{path}/input_items", params=params)


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


async def test_one_with_log_probabilities_is_stored_with_them_and_goes_on(storing):
    final = (await events(storing, include=["message.output_text.logprobs"], top_logprobs=1))[-1]["response"]
    assert final["output"][0]["content"][0]["logprobs"]
    assert (await storing.http.get(f"/v1/responses/{final['id']}")).json() == final
    assert (await ask(storing, previous_response_id=final["id"])).status_code == 200


async def test_it_and_its_items_are_there_for_their_time(storing, clock):
    path = f"/v1/responses/{(await ask(storing)).json()['id']}"
    clock.now = 3599.0
    assert (await storing.http.get(path)).status_code == (await listed(storing, path)).status_code == 200
    clock.now = 3600.0
    answer = await storing.http.get(path)
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "response_id")
    assert (await listed(storing, path)).json() == answer.json()
    assert (await ask(storing, previous_response_id=path.rpartition("/")[2])).status_code == 400


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
    """What was said before is decoded and tokenized with it."""
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
    """Instructions are of one response alone, as at OpenAI."""
    first = (await ask(storing, input="one", instructions="Be brief.")).json()
    second = (await ask(storing, input="two", previous_response_id=first["id"])).json()
    assert second["previous_response_id"] == first["id"]
    await storing.client.responses.delete(first["id"])
    found = await events(storing, input=[{"role": "user", "content": "three"}], previous_response_id=second["id"])
    assert found[-1]["response"]["previous_response_id"] == second["id"]
    said = ["one", "Paris é!", "two", "Paris é!", "three"]
    roles = ["user", "assistant"]
    expected = [{"role": roles[number % 2], "content": text} for number, text in enumerate(said)]
    assert storing.tokens.messages == expected


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
    """What is not looked up is not continued."""
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
