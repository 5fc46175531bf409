"""A model that means what it says, in a service with prefill and decode in separate processes: the README's example,
and calls of tools."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import client_scripts
import pytest

CHAT: Any = [{"role": "user", "content": "Name the capital of France."}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def service(start: Callable[..., Any]) -> Any:
    return start(source="{builtin: smollm2-135m-instruct}")


def test_the_capital_of_france_comes_by_hand_off(service: Any) -> None:
    headers = {"x-legato-explain": "true"}
    answer = service.client.chat.completions.with_raw_response.create(
        model="smollm2", messages=CHAT, temperature=0, extra_headers=headers
    )
    assert "Paris" in answer.parse().choices[0].message.content
    assert answer.parse().choices[0].finish_reason == "stop"
    route = json.loads(answer.headers["x-legato-route"])
    assert (route["prefill"], route["decode"]) == ("test-prefill-0", "test-decode-0")
    assert route["transport"].startswith("ucx")
    (handoff,) = service.record(answer.parse().id)["handoffs"]
    assert handoff["source"] == "test-prefill-0"
    assert handoff["blocks"] >= 1
    assert handoff["bytes"] == handoff["blocks"] * 16 * 30 * 2 * 3 * 64 * 4


def test_the_model_is_told_of_what_tools_returned(service: Any) -> None:
    said = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "It is raining in Paris."},
    ]
    create = service.client.chat.completions.create
    answer = create(model="smollm2", messages=said, tools=[TOOL], max_tokens=40, temperature=0)
    assert "rain" in answer.choices[0].message.content


@pytest.mark.timeout(client_scripts.SECONDS + 60)
def test_langchain_calls_tools_with_the_arguments_that_it_was_asked_for(service: Any, tmp_path: Path) -> None:
    client_scripts.run("langchain", service.url, tmp_path, "-k", "tool_call")
