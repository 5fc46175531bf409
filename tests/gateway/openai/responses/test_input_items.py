"""The items that a stored response was made of: all of them, in order, page by page, with ids that stay."""

import json
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseItemList
from tests.support.response_events import ask

from legato_gateway.request import Delta

WEATHER: Any = {"type": "function", "name": "get_weather", "parameters": None, "strict": None}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'


async def listed(gateway: Any, id: str, **params: Any) -> Any:
    return await gateway.http.get(f"/v1/responses/{id}/input_items", params=params)


def said(*texts: object) -> list[dict[str, Any]]:
    return [{"role": "user", "content": str(text)} for text in texts]


async def test_the_official_client_reads_the_input_of_a_response(storing):
    made = await storing.client.responses.create(model="tiny", input="hi", instructions="Be brief.")
    page = await storing.client.responses.input_items.list(made.id)
    (item,) = page.data
    assert (item.type, item.role, item.status, item.id[:4]) == ("message", "user", "completed", "msg_")
    assert [(part.type, part.text) for part in item.content] == [("input_text", "hi")]
    assert page.has_more is False


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
    whole = (await listed(storing, made, limit=100)).json()
    first = (await listed(storing, made)).json()
    ids = [item["id"] for item in whole["data"]]
    ResponseItemList.model_validate(first)
    assert (first["object"], len(first["data"]), first["has_more"]) == ("list", 20, True)
    assert (first["first_id"], first["last_id"]) == (ids[0], ids[19])
    last = (await listed(storing, made, after=ids[19])).json()
    assert [item["id"] for item in last["data"]] == ids[20:]
    assert (last["first_id"], last["last_id"], last["has_more"]) == (ids[20], ids[20], False)
    none = (await listed(storing, made, after=ids[20])).json()
    assert none == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


async def test_ids_of_clients_are_not_kept(storing):
    """They may come twice, and a page that begins after such a one would come again and again."""
    same = {**said("hi")[0], "id": "msg_mine", "status": "in_progress"}
    made = (await ask(storing, input=[same, same])).json()["id"]
    found = (await listed(storing, made)).json()["data"]
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
    page = (await listed(gateway, second["id"], order="asc")).json()
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
    cut_off = (await listed(gateway, third, limit=1, after=(await listed(gateway, third)).json()["first_id"])).json()
    assert [item["status"] for item in cut_off["data"]] == ["incomplete"]


async def test_an_answer_with_log_probabilities_is_listed_without(storing):
    included = ["message.output_text.logprobs"]
    made = (await ask(storing, include=included)).json()["id"]
    last = (await ask(storing, previous_response_id=made)).json()["id"]
    found = (await listed(storing, last)).json()["data"]
    assert "logprobs" not in found[1]["content"][0]
    with pytest.raises(openai.BadRequestError, match="not supported") as refused:
        await storing.client.responses.input_items.list(last, include=included)
    assert refused.value.body["param"] == "include"
    page = await storing.client.responses.input_items.list(last, include=["reasoning.encrypted_content"])
    assert len(page.data) == 3


WRONG = {
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
    for name, value in ((name, value) for name, values in WRONG.items() for value in values):
        answer = await listed(storing, made, **{name: value})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, name.removesuffix("[]")), error
        assert len(error["message"]) < 400


async def test_ids_count_among_the_memory_of_responses(storing, store):
    """Of many short items, they are most of what is stored."""
    used = [0]
    for count in (50, 100):
        assert (await ask(storing, input=said("") * count)).status_code == 200
        used.append(store.used - used[-1])
    assert used[2] - used[1] > 50 * len(json.dumps(said("")[0]) + "msg_" + "0" * 32)
    store.check_integrity()
