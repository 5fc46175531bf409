"""`/v1/responses/input_tokens`: what a response's prompt counts, before it is asked for."""

from typing import Any

import pytest
from tests.support.response_events import ask

from legato_gateway.openai.responses.store import ResponseStore, StorePolicy

TOOL: Any = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": None}
SAID: Any = [{"role": "user", "content": [{"type": "input_text", "text": "Is it raining?"}]}]


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "hi"},
        {"input": SAID, "instructions": "Be brief.", "truncation": "disabled"},
        {"input": SAID, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        {"input": "hi", "text": {"format": {"type": "json_object"}}, "reasoning": {"effort": None}},
    ],
)
async def test_it_is_what_the_response_then_counts(make: Any, fields: dict[str, Any]) -> None:
    gateway = make(template="{{ tools }}<tool_call>")
    counted = await gateway.client.responses.input_tokens.count(model="tiny", **fields)
    assert counted.object == "response.input_tokens"
    assert gateway.relay.requests == [], "nothing is generated"
    made = await gateway.client.responses.create(model="tiny", **fields)
    assert counted.input_tokens == made.usage.input_tokens > 0


async def test_what_was_said_before_counts(make: Any) -> None:
    gateway = make(responses=ResponseStore(StorePolicy(3600.0, 1 << 20), lambda: 0.0))
    first = (await ask(gateway, input="one")).json()
    fields = {"model": "tiny", "input": "two", "previous_response_id": first["id"]}
    counted = await gateway.client.responses.input_tokens.count(**fields)
    assert counted.input_tokens == (await ask(gateway, **fields)).json()["usage"]["input_tokens"]
    alone = await gateway.client.responses.input_tokens.count(model="tiny", input="two")
    assert counted.input_tokens > alone.input_tokens


@pytest.mark.parametrize(
    ("param", "status", "fields"),
    [
        ("input", 400, {"input": []}),
        ("input[0].type", 400, {"input": [{"type": "item_reference", "id": "a"}]}),
        ("input[0].role", 400, {"input": [{"role": "a b", "content": "hi"}]}),
        ("model", 404, {"model": "other"}),
        ("tools[0].type", 400, {"tools": [{"type": "web_search"}]}),
        ("text.format.type", 400, {"text": {"format": {"type": "xml"}}}),
        ("truncation", 400, {"truncation": "auto"}),
        ("previous_response_id", 400, {"previous_response_id": "resp_0"}),
        ("conversation", 400, {"conversation": "conv_0"}),
        ("personality", 400, {"personality": "friendly"}),
        ("temperature", 400, {"temperature": 1}),
    ],
)
async def test_what_a_response_could_not_be_made_of_is_not_counted(
    gateway: Any, param: str, status: int, fields: dict[str, Any]
) -> None:
    answer = await gateway.http.post("/v1/responses/input_tokens", json={"input": "hi", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
