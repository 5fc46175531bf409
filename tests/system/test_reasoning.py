"""Reasoning on real workers, prefill and decode apart, for the official client: of a model that never ends it, so it
reasons until it is stopped."""

import json
from typing import Any

import jsonschema
import pytest

pytestmark = pytest.mark.usefixtures("reasoning")
STORY = " ".join(f"Chapter {i}: the fox counted {i * 37 % 101} stones." for i in range(6))
QUESTION: Any = [{"role": "user", "content": f"{STORY} Which are prime?"}]
SCHEMA: Any = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 100},
    "minItems": 4,
    "maxItems": 6,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "stones", "schema": SCHEMA}}


def ask(service: Any, **options: Any) -> Any:
    given = {"model": "smollm2", "messages": QUESTION, "temperature": 0, "max_tokens": 120} | options
    given.setdefault("chat_template_kwargs", {"enable_thinking": True})
    extra = {key: given.pop(key) for key in ("thinking_token_budget", "chat_template_kwargs") if key in given}
    return service.client.chat.completions.create(**given, extra_body=extra)


def joined(choices: Any, field: str) -> str:
    return "".join(getattr(choice.delta, field, None) or "" for choice in choices)


def test_a_budget_ends_reasoning_and_the_answer_matches(service: Any) -> None:
    answer = ask(service, thinking_token_budget=9, response_format=FORMAT)
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.message.reasoning_content
    assert answer.usage.completion_tokens_details.reasoning_tokens == 9
    jsonschema.validate(json.loads(choice.message.content), SCHEMA)
    assert service.record(answer.id)["prefill"] not in ("", "local"), "workers apart agree where it ends"
    chunks = list(ask(service, thinking_token_budget=9, response_format=FORMAT, stream=True))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert joined(choices, "reasoning_content") == choice.message.reasoning_content
    assert joined(choices, "content") == choice.message.content
    service.until_idle()


def test_requests_switch_reasoning_off(service: Any) -> None:
    answer = ask(service, response_format=FORMAT, chat_template_kwargs={"enable_thinking": False})
    assert getattr(answer.choices[0].message, "reasoning_content", None) is None
    jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMA)
