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

WEATHER: Any = {"type": "function", "name": "get_weather", "parameters": None, "strict": None}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'


async def test_a_response_is_found_again_until_it_is_deleted(storing):
    made = await storing.client.responses.create(model="tiny", input="hi", metadata={"a": "b"})
    assert made.to_dict()["store"] is True
    found = await storing.client.responses.retrieve(made.id)
    assert found.to_dict() == made.to_dict()
    await storing.client.responses.delete(made.id)
    for method in (storing.client.responses.retrieve, storing.client.responses.delete):
        with pytest.raises(openai.NotFoundError) as missing:
            await method(made.id)
        assert missing.value.body["param"] == "response_id"


async def test_a_streamed_one_is_what_the_stream_ended_with(storing):
    final = (await events(storing))[-1]["response"]
    assert (await storing.http.get(f"/v1/responses/{final['id']}")).json() == final


async def test_one_with_log_probabilities_is_stored_with_them_and_goes_on(storing):
    final = (await events(storing, include=["message.output_text.logprobs"], top_logprobs=1))[-1]["response"]
    assert final["output"][0]["content"][0]["logprobs"]
    assert (await storing.http.get(f"/v1/responses/{final['id']}")).json() == final
    assert (await ask(storing, previous_response_id=final["id"])).status_code == 200


async def test_it_is_there_for_its_time(storing, clock):
    made = (await ask(storing)).json()
    clock.now = 3599.0
    assert (await storing.http.get(f"/v1/responses/{made['id']}")).status_code == 200
    clock.now = 3600.0
    assert (await storing.http.get(f"/v1/responses/{made['id']}")).status_code == 404
    assert (await ask(storing, previous_response_id=made["id"])).status_code == 400


async def test_who_does_not_want_it_stored_has_it_so(storing):
    made = (await ask(storing, store=False)).json()
    assert made["store"] is False
    assert (await storing.http.get(f"/v1/responses/{made['id']}")).status_code == 404
    wrong = await ask(storing, store="yes")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "store")


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


async def test_what_was_cut_off_is_stored_and_what_failed_is_not(storing):
    storing.script(Delta(0, "Par", (), "length"))
    cut_off = (await ask(storing)).json()
    assert (await storing.http.get(f"/v1/responses/{cut_off['id']}")).json()["status"] == "incomplete"
    storing.script(Delta(0, "Par"), WorkerFailed("gone"))
    failed = (await events(storing))[-1]["response"]
    assert (await storing.http.get(f"/v1/responses/{failed['id']}")).status_code == 404


async def test_another_tenant_finds_and_continues_nothing(make, store, tmp_path):
    gateway = make(clients=Clients(keyed(tmp_path, a={}, b={})), responses=store)
    mine, others = ({"authorization": f"Bearer key-{name}"} for name in "ab")
    made = (await ask(gateway, mine)).json()["id"]
    assert (await gateway.http.get(f"/v1/responses/{made}", headers=mine)).status_code == 200
    assert (await gateway.http.get(f"/v1/responses/{made}", headers=others)).status_code == 404
    assert (await gateway.http.delete(f"/v1/responses/{made}", headers=others)).status_code == 404
    assert (await gateway.http.post(f"/v1/responses/{made}/cancel", headers=others)).status_code == 404
    refused = await ask(gateway, others, previous_response_id=made)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")
    assert (await gateway.http.get(f"/v1/responses/{made}")).status_code == 401
    statuses = [await gateway.http.get(f"/v1/responses/{made}/input_items", headers=who) for who in (mine, others, {})]
    assert [answer.status_code for answer in statuses] == [200, 404, 401]
    assert len(gateway.relay.generations) == 1


async def test_nothing_runs_that_could_be_cancelled(storing):
    made = await storing.client.responses.create(model="tiny", input="hi")
    with pytest.raises(openai.BadRequestError, match="cannot be cancelled"):
        await storing.client.responses.cancel(made.id)
    with pytest.raises(openai.NotFoundError):
        await storing.client.responses.cancel("resp_other")


@pytest.mark.parametrize("query", ["stream=true", "include[]=message.output_text.logprobs", "starting_after=3"])
async def test_a_stored_response_is_not_streamed_again(storing, query):
    made = (await ask(storing)).json()["id"]
    answer = await storing.http.get(f"/v1/responses/{made}?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])
    assert (await storing.http.get(f"/v1/responses/{made}?stream=false")).status_code == 200


@pytest.mark.parametrize("id", ["resp_1", 5, None, ""])
async def test_an_id_that_is_not_known_is_refused_with_its_field(storing, id):
    answer = await ask(storing, previous_response_id=id)
    assert answer.status_code == (200 if id is None else 400)
    assert id is None or answer.json()["error"]["param"] == "previous_response_id"


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


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("DELETE", ""), ("POST", "/cancel")])
async def test_where_nothing_is_stored_nothing_is_found(gateway, method, path):
    made = (await ask(gateway, store=True)).json()
    assert made["store"] is False
    answer = await gateway.http.request(method, f"/v1/responses/{made['id']}{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert "stores no responses" in answer.json()["error"]["message"]
