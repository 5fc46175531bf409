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
    if "reasoning_effort" not in given:
        given.setdefault("chat_template_kwargs", {"enable_thinking": True})
    extra = {key: given.pop(key) for key in ("thinking_token_budget", "chat_template_kwargs") if key in given}
    return service.client.chat.completions.create(**given, extra_body=extra)


def told(choices: Any, field: str) -> str:
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
    assert told(choices, "reasoning_content") == choice.message.reasoning_content
    assert told(choices, "content") == choice.message.content
    service.until_idle()


def test_choices_end_their_reasoning_each_for_itself(service: Any) -> None:
    options: Any = {"n": 3, "temperature": 1.0, "seed": 7, "thinking_token_budget": 12, "response_format": FORMAT}
    answers = [ask(service, **options) for _ in range(2)]
    messages = [[choice.message.model_dump() for choice in answer.choices] for answer in answers]
    assert messages[0] == messages[1], "seeded"
    assert len({message["reasoning"] for message in messages[0]}) == 3
    assert all(json.loads(message["content"]) for message in messages[0])
    assert 0 < answers[0].usage.completion_tokens_details.reasoning_tokens <= 36


def test_requests_switch_reasoning_off(service: Any) -> None:
    for off in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
        answer = ask(service, response_format=FORMAT, **off)
        assert getattr(answer.choices[0].message, "reasoning_content", None) is None
        jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMA)
    cut = ask(service, reasoning_effort="high", max_tokens=20)
    assert cut.choices[0].message.content is None
    assert cut.usage.completion_tokens_details.reasoning_tokens == 20
