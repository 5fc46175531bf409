"""Anthropic's official client against real workers, prefill and decode apart."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

STORY = "A letter. " + " ".join(f"Chapter {i}: the fox counted {i * 37 % 101} stones." for i in range(12))
QUESTION: Any = [{"role": "user", "content": f"{STORY} What is the capital of France?"}]
GREEDY = {"temperature": 0}
TOOLS: Any = [
    {
        "name": "count_stones",
        "description": "Counts stones.",
        "input_schema": {
            "type": "object",
            "properties": {
                "colour": {"enum": ["red", "blue"]},
                "least": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "required": ["colour", "least"],
            "additionalProperties": False,
        },
    }
]


@pytest.fixture
def client(service: Any) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=service.url, api_key="unused", timeout=120.0, max_retries=0) as client:
        yield client


def ask(client: anthropic.Anthropic, **fields: Any) -> Any:
    return client.messages.create(
        **{"model": "smollm2", "max_tokens": 12, "messages": QUESTION, "extra_body": GREEDY, **fields}
    )


def test_an_answer_and_its_stream_are_those_of_a_chat(service: Any, client: anthropic.Anthropic) -> None:
    chat = service.client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0, max_tokens=12)
    answer = ask(client)
    with client.messages.stream(model="smollm2", max_tokens=12, messages=QUESTION, extra_body=GREEDY) as stream:
        streamed = stream.get_final_message()
    texts = [chat.choices[0].message.content, answer.content[0].text, streamed.content[0].text]
    assert texts == texts[:1] * 3
    assert (
        answer.stop_reason == streamed.stop_reason == ("max_tokens" if answer.usage.output_tokens == 12 else "end_turn")
    )
    counted = client.messages.count_tokens(model="smollm2", messages=QUESTION).input_tokens
    usage = streamed.usage
    assert counted == chat.usage.prompt_tokens == usage.input_tokens + usage.cache_read_input_tokens
    assert service.record(chat.id)["prefill"] not in ("", "local")
    service.until_idle()


def test_a_stop_sequence_ends_it_and_is_named(service: Any, client: anthropic.Anthropic) -> None:
    whole = ask(client).content[0].text
    word = whole.split()[2]
    answer = ask(client, stop_sequences=["never", word])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", word)
    assert answer.content[0].text == whole[: whole.index(word)]
    service.until_idle()


def test_a_tool_is_called_and_its_result_taken(service: Any, client: anthropic.Anthropic) -> None:
    asked: Any = {"model": "smollm2", "max_tokens": 100, "messages": QUESTION, "tools": TOOLS}
    with client.messages.stream(**asked, tool_choice={"type": "any", "disable_parallel_tool_use": True}) as stream:
        answer = stream.get_final_message()
    (call,) = answer.content
    assert (call.type, call.name, answer.stop_reason) == ("tool_use", "count_stones", "tool_use")
    assert call.input["colour"] in ("red", "blue")
    assert 0 <= call.input["least"] <= 9
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "7 stones"}
    turns = [*QUESTION, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    after = ask(client, messages=turns, tools=TOOLS)
    assert after.usage.output_tokens > 0
    service.until_idle()
