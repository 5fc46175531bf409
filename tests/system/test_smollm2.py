"""A model that means what it says, in a service with prefill and decode in separate processes: the README's example."""

import json
from collections.abc import Callable
from typing import Any

import pytest

CHAT: Any = [{"role": "user", "content": "Name the capital of France."}]


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
