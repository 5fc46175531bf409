"""The Responses API and Anthropic's on real workers, prefill and decode apart, for their official clients. More of
them is in tests/gateway, and with_openai_agents.py calls tools through responses."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

STORY = " ".join(f"Chapter {i}: the fox counted {i * 37 % 101} stones." for i in range(12))
QUESTION: Any = [{"role": "user", "content": f"{STORY} What is the capital of France?"}]
GREEDY: Any = {"model": "smollm2", "temperature": 0}
PROPERTIES = {"colour": {"enum": ["red", "blue"]}, "least": {"type": "integer", "minimum": 0, "maximum": 9}}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": [*PROPERTIES], "additionalProperties": False}
TOOLS: Any = [{"name": "count_stones", "description": "Counts stones.", "input_schema": SCHEMA}]


@pytest.fixture
def messages(service: Any) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=service.url, api_key="unused", timeout=120.0, max_retries=0) as client:
        yield client.messages


@pytest.fixture
def chat(service: Any) -> Any:
    """The answer of the chat API."""
    yield service.client.chat.completions.create(messages=QUESTION, max_tokens=12, **GREEDY)
    service.until_idle()


def test_a_response_and_its_stream_are_the_answer_of_a_chat(service: Any, chat: Any) -> None:
    asked: Any = {"input": QUESTION, "max_output_tokens": 12, **GREEDY}
    answer = service.client.responses.create(**asked)
    assert answer.output_text == chat.choices[0].message.content
    assert answer.usage.input_tokens == chat.usage.prompt_tokens
    assert answer.usage.input_tokens_details.cached_tokens > 0
    assert service.record(answer.id)["decode"]
    with service.client.responses.stream(**asked) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == events[-1].response.output_text == answer.output_text


def test_a_message_and_its_stream_are_the_answer_of_a_chat(messages: Any, chat: Any) -> None:
    asked: Any = {"model": "smollm2", "max_tokens": 12, "messages": QUESTION, "extra_body": {"temperature": 0}}
    answer = messages.create(**asked)
    with messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    text = chat.choices[0].message.content
    assert (answer.content[0].text, streamed.content[0].text) == (text, text)
    reason = "max_tokens" if answer.usage.output_tokens == 12 else "end_turn"
    assert (answer.stop_reason, streamed.stop_reason) == (reason, reason)
    counted = messages.count_tokens(model="smollm2", messages=QUESTION).input_tokens
    assert counted == chat.usage.prompt_tokens == streamed.usage.input_tokens + streamed.usage.cache_read_input_tokens
    word = text.split()[2]
    cut = messages.create(**asked, stop_sequences=["never", word])
    assert (cut.content[0].text, cut.stop_sequence) == (text[: text.index(word)], word)


def test_a_tool_is_called_and_its_result_taken_by_messages(messages: Any) -> None:
    asked: Any = {"model": "smollm2", "max_tokens": 100, "tools": TOOLS}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    with messages.stream(**asked, messages=QUESTION, tool_choice=choice) as stream:
        answer = stream.get_final_message()
    (call,) = answer.content
    assert (call.type, call.name, answer.stop_reason) == ("tool_use", "count_stones", "tool_use")
    assert call.input["colour"] in ("red", "blue")
    assert 0 <= call.input["least"] <= 9
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "7 stones"}
    following = [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert messages.create(**asked, messages=[*QUESTION, *following]).usage.output_tokens > 0
